"""`allreduce`, between steps and inside of a step."""

import math
import weakref

from keras import ops

from easyddl import backends
from easyddl.collectives import arrays
from easyddl.reducer.in_step_sum import InStepSum
from easyddl.runtime import context

_custom_steps = weakref.WeakKeyDictionary()  # sums, by the graph that a custom loop traces


def allreduce(x, op="mean"):
    """Reduces an array over all ranks, element by element.

    float16 and bfloat16 are summed in float32 and rounded once. Elements are combined in an
    order that depends on the layout of the ranks alone, so that all ranks get the same bits,
    in every run.

    Inside of a `train_step` of your own, and in a `tf.function`, it takes floating-point tensors
    of a known shape, with `"mean"` and `"sum"`. They are computed in float32; gradients pass
    through; and ranks that have no batch in the step add nothing and do not count. All ranks must
    make the same calls.

    Args:
        x: NumPy array, number, or tensor of the active Keras backend, of the same shape and
            dtype on all ranks: float16, bfloat16, float32, float64, int8 to int64, uint8, or
            bool (`"min"`, `"max"` and `"prod"` only).
        op: One of `"mean"` (floating-point only), `"sum"`, `"min"`, `"max"`, `"prod"`.
            Integers wrap around; a NaN on any rank is a NaN in the result.

    Returns:
        What `x` is: an array, number or tensor of its shape and dtype, equal on all ranks.

    Raises:
        TypeError: If `x` is no array of a supported dtype.
        ValueError: If `op` is unknown.
        RuntimeError: On all ranks, if they disagree in shape, dtype or op.

    Example:
    ```python
    total = ddl.allreduce(np.array([1.0, 2.0]), op="sum")  # [k, 2k] on k ranks
    ```
    """
    return _of_step(x, op) if _is_of_step(x) else arrays.allreduce(x, op)


# Tells TensorFlow's AutoGraph, in a user's tf.function, to call it as it is.
allreduce.autograph_info__ = {}


def _is_of_step(x):
    """Whether a tensor is reduced as a part of the step: that of a fit, or a traced one."""
    backend = backends.backend_of(x)
    if backend is None:
        return False
    join = context.join()
    in_step = join is not None and join.is_in_step
    return backend.is_symbolic(x) or (in_step and backend.is_float(x))


def _of_step(x, op):
    if op not in ("sum", "mean"):
        raise ValueError(
            'Inside of a step `op` must be "sum" or "mean". Call it outside of the step, and of '
            f"tf.function, for others. Received: op={op!r}"
        )
    if None in tuple(x.shape):
        raise ValueError(
            "Inside of a step the shape of `x` must be known, since the ranks agree on it "
            f"beforehand: reduce the batch first, as by a mean. Received: x of shape {x.shape}"
        )
    return in_step(x, op)


def in_step(x, op):
    """The sum or the mean of a tensor over all ranks that have a batch.

    Args:
        x: Floating-point tensor of a known shape, which may be symbolic.
        op: `"sum"` or `"mean"`.
    """
    if backends.require().infers_shapes(x):
        return x
    shape = tuple(x.shape)
    flat = ops.cast(ops.reshape(x, (-1,)), "float32")
    # Appends a 1, so that the sum also counts the participants.
    total = _sum_at_this_place(x, shape)(ops.concatenate([flat, ops.ones((1,), "float32")]))
    result = total[:-1] / total[-1] if op == "mean" else total[:-1]
    return ops.cast(ops.reshape(result, shape), x.dtype)


def _sum_at_this_place(x, shape):
    def make(place):
        return InStepSum(f"allreduce {place + 1} in the step", (math.prod(shape) + 1,))

    join = context.join()
    if join is not None and join.is_in_step:
        return join.sum_at_this_place(("allreduce", shape), make)
    sums = _custom_steps.setdefault(backends.require().scope_of(x), [])
    sums.append(make(len(sums)))
    return sums[-1]
