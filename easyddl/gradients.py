"""The hook on an optimizer: gradients are averaged over all ranks before they are applied."""

import collections

import keras

from easyddl import backends, collectives, world

_HOOK = "_easyddl_unhook"

# How many times this process has exchanged gradients.
exchanges = 0


def hook(optimizer):
    """Makes an optimizer average gradients before it applies them.

    The outermost optimizer's `apply` comes before unscaling, clipping, accumulation, weight
    decay and moving averages, so that all of these see the gradients that one process would
    have seen. The hook is an attribute of this instance, set past Keras's attribute tracking.

    Args:
        optimizer: A Keras optimizer.

    Returns:
        Function that takes the hook off again. It does nothing if the optimizer had one before.
    """
    if is_hooked(optimizer):
        return lambda: None
    original = optimizer.apply

    def apply(grads, trainable_variables=None):
        return original(average(list(grads), trainable_variables), trainable_variables)

    def unhook():
        object.__delattr__(optimizer, "apply")
        object.__delattr__(optimizer, _HOOK)

    object.__setattr__(optimizer, "apply", apply)
    object.__setattr__(optimizer, _HOOK, unhook)
    return unhook


def is_hooked(optimizer):
    """Whether an optimizer averages gradients."""
    return hasattr(optimizer, _HOOK)


def average(grads, variables):
    """The mean of each gradient over all ranks; `None` stays `None`.

    Args:
        grads: List of gradient tensors, or `None` where there is none.
        variables: The variables they belong to, or `None`.
    """
    if world.size() == 1:
        return grads
    present = [i for i, grad in enumerate(grads) if grad is not None]
    if not present:
        return grads
    names = [v.name for v in variables] if variables is not None else [""] * len(grads)
    text = _describe([(i, names[i], grads[i]) for i in present])
    reduced = backends.require().exchange(
        [grads[i] for i in present], lambda arrays: _mean(arrays, text)
    )
    result = list(grads)
    for i, grad in zip(present, reduced, strict=True):
        result[i] = grad
    return result


def _describe(gradients):
    """The list of gradients in words, for the ranks to compare.

    Not by `variable.path`: it holds numbers that count the models made before, which may
    differ by rank.
    """
    parts = [f"{i} {name} {_spec(gradient)}" for i, name, gradient in gradients]
    return f"the exchange of gradients of ({', '.join(parts)})"


def _spec(gradient):
    return f"{keras.backend.standardize_dtype(gradient.dtype)}{tuple(gradient.shape)}"


def _mean(arrays, text):
    """Averages arrays over all ranks, those of one dtype in one collective."""
    global exchanges
    by_dtype = collections.defaultdict(list)
    for i, array in enumerate(arrays):
        by_dtype[array.dtype.name].append(i)
    results = list(arrays)
    for dtype, indices in by_dtype.items():
        reduced = collectives.reduce_arrays(
            [arrays[i] for i in indices], dtype, "mean", world.signature(f"{text}, {dtype}")
        )
        for i, array in zip(indices, reduced, strict=True):
            results[i] = array
    exchanges += 1
    return results
