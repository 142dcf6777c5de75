"""The hook on an optimizer: gradients are averaged over all ranks before they are applied."""

import contextlib
import functools
import weakref

import keras

from easyddl import backends
from easyddl.compat import keras_optimizer, patches
from easyddl.reducer.batch_weight import UNWEIGHTED
from easyddl.reducer.gradient_reducer import GradientReducer, is_overwritten

_HOOK = "_easyddl_reducer"

_applying = []  # the optimizers whose hooked `apply` is running, the innermost last


def reducer_of(optimizer, batch_weight=None, bucket_bytes=None, sparse_as_dense=False):
    """The `GradientReducer` of an optimizer, for `hook`.

    Args:
        optimizer: A Keras optimizer.
        batch_weight: `BatchWeight` of the model that is trained. Without one, all ranks that have
            a batch count alike.
        bucket_bytes: Integer, or `None` for a size that is measured.
        sparse_as_dense: Boolean. Whether sparse gradients travel as dense ones.
    """
    accumulates = _accumulates(optimizer)
    reducer = GradientReducer(
        bucket_bytes,
        _weight_of(batch_weight, accumulates),
        as_ready=not accumulates,
        sparse_as_dense=sparse_as_dense or accumulates,  # Keras adds up dense ones
    )
    # An optimizer that is dropped gives back the engine's memory. At exit all memory goes anyway.
    weakref.finalize(optimizer, reducer.close).atexit = False
    return reducer


def hook(optimizer, reducer):
    """Makes an optimizer average gradients before it applies them.

    The outermost optimizer's `apply` comes before unscaling, clipping, accumulation, weight
    decay and moving averages, so that all of these see the gradients that one process would
    have seen. The hook is an attribute of this instance, set past Keras's attribute tracking.

    Args:
        optimizer: A Keras optimizer.
        reducer: Its `GradientReducer`.

    Returns:
        Function that takes the hook off again. It does nothing if the optimizer had one before.
    """
    if is_hooked(optimizer):
        return lambda: None
    replaced = (_update_of if _accumulates(optimizer) else _apply_of)(optimizer, reducer)
    uncompiled = backends.require().uncompiled
    hooked = {name: uncompiled(function) for name, function in replaced.items()}
    undo, unmark = patches.replace_all(optimizer, hooked), patches.add(optimizer, _HOOK, reducer)

    def unhook():
        reducer.pause()
        undo()
        unmark()

    return unhook


def checked_sparse_as_dense(sparse_as_dense):
    """The user's argument `sparse_as_dense`; an error if it is no boolean."""
    if not isinstance(sparse_as_dense, bool):
        raise ValueError(
            "`sparse_as_dense` must be True or False. "
            f"Received: sparse_as_dense={sparse_as_dense!r}"
        )
    return sparse_as_dense


def _accumulates(optimizer):
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _weight_of(batch_weight, accumulates):
    if batch_weight is None:
        return None
    if not accumulates:
        return batch_weight.current
    # An update takes several batches, whose weights are gone by then.
    return lambda: UNWEIGHTED if batch_weight.is_unweighted else None


def is_hooked(optimizer):
    """Whether an optimizer averages gradients."""
    return hasattr(optimizer, _HOOK)


def is_applied_by_another():
    """Whether a hooked optimizer's `apply` is running, which may call other optimizers.

    These get gradients that are averaged already.
    """
    return bool(_applying)


@contextlib.contextmanager
def _applied(optimizer):
    _applying.append(optimizer)
    try:
        yield
    finally:
        _applying.pop()


def _build(optimizer, variables):
    """Builds an optimizer as its `apply` would, before an operation may wait for a batch."""
    if not optimizer.built and variables is not None:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(list(variables))


def _variables_of(optimizer, variables):
    if variables is None:
        return keras_optimizer.trainable_variables_of(optimizer)
    return list(variables)


def _apply_of(optimizer, reducer):
    """What replaces the methods of an optimizer that updates at every step."""
    original, original_stateless = optimizer.apply, optimizer.stateless_apply
    # Looked up at each call, so that tests can replace the method.
    mean = backends.require().uncompiled(lambda *args: reducer.mean(*args), wholly=True)
    are_means = False  # because `stateless_apply` calls `apply`, as that of most optimizers does

    def apply(grads, trainable_variables=None):
        if are_means:
            return original(grads, trainable_variables)
        grads = list(grads)
        _build(optimizer, trainable_variables)
        variables = _variables_of(optimizer, trainable_variables)
        with backends.require().once_there_is_a_batch(), _applied(optimizer):
            return original(mean(grads, variables), trainable_variables)

    def stateless_apply(optimizer_variables, grads, trainable_variables):
        # Before it branches, as `LossScaleOptimizer` does: all ranks must come here.
        nonlocal are_means
        means = mean(list(grads), _variables_of(optimizer, None)) if optimizer.built else grads
        are_means = True
        try:
            with _applied(optimizer):
                return original_stateless(optimizer_variables, means, trainable_variables)
        finally:
            are_means = False

    return {"apply": apply, "stateless_apply": stateless_apply}


def _update_of(optimizer, reducer):
    """What replaces the methods of an optimizer that accumulates gradients.

    The mean over ranks of a sum over steps is the sum over steps of the means. So one exchange per
    update, between accumulation and clipping, serves all steps of the update.
    """
    original_apply, original_clip = optimizer.apply, keras_optimizer.clip_of(optimizer)
    uncompiled = functools.partial(backends.require().uncompiled, wholly=True)
    mean = uncompiled(lambda *args: reducer.mean(*args))
    register = uncompiled(reducer.register)
    overwriting = uncompiled(reducer.overwriting)
    applied = []

    def apply(grads, trainable_variables=None):
        grads = list(grads)
        _build(optimizer, trainable_variables)
        variables = _variables_of(optimizer, trainable_variables)
        pairs = [
            (grad, variable)
            for grad, variable in zip(grads, variables, strict=False)
            if grad is not None and not is_overwritten(variable)
        ]
        applied[:] = [variable for _, variable in pairs]
        if len(grads) == len(variables):
            register([grad for grad, _ in pairs], list(applied))
            grads = overwriting(grads, variables)
        with backends.require().once_there_is_a_batch(), _applied(optimizer):
            return original_apply(grads, trainable_variables)

    def clip(grads):
        return original_clip(mean(list(grads), list(applied)))

    return {"apply": apply, keras_optimizer.CLIP: clip}
