"""`allreduce` inside of a step, which ranks without batches join."""

import math
import weakref

from keras import ops

from easyddl import backends
from easyddl.reducer.in_step_sum import StepSum
from easyddl.runtime import join

_custom_steps = weakref.WeakKeyDictionary()  # by the graph that a custom loop traces


def serves(x):
    """Whether a tensor is to be reduced as a part of the step: that of a fit, or a traced one."""
    backend = backends.backend_of(x)
    if backend is None:
        return False
    under_way = join.current()
    in_step = under_way is not None and under_way.is_in_step
    return backend.is_symbolic(x) or (in_step and backend.is_float(x))


def allreduce(x, op):
    """The sum or the mean of a tensor over all ranks that have a batch.

    Args:
        x: Floating-point tensor of a known shape, which may be symbolic.
        op: `"sum"` or `"mean"`.
    """
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
    if backends.require().infers_shapes(x):
        return x
    shape = tuple(x.shape)
    flat = ops.cast(ops.reshape(x, (-1,)), "float32")
    # With them travels how many they are.
    total = _sum_at_this_place(x, shape)(ops.concatenate([flat, ops.ones((1,), "float32")]))
    result = total[:-1] / total[-1] if op == "mean" else total[:-1]
    return ops.cast(ops.reshape(result, shape), x.dtype)


def _sum_at_this_place(x, shape):
    def make(place):
        return StepSum(f"allreduce {place + 1} in the step", (math.prod(shape) + 1,))

    under_way = join.current()
    if under_way is not None and under_way.is_in_step:
        return under_way.sum_in_step(("allreduce", shape), make)
    sums = _custom_steps.setdefault(backends.require().scope_of(x), [])
    sums.append(make(len(sums)))
    return sums[-1]
