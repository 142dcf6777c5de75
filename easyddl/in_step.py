"""`allreduce` inside of a compiled step, where there are no values yet."""

import collections
import math
import weakref

from keras import ops

from easyddl import attendance, backends
from easyddl.step_sum import StepSum

_calls = weakref.WeakKeyDictionary()  # by graph: how many were traced
_of_custom_loops = {}


def allreduce(x, op):
    """The sum or the mean of a symbolic tensor over all ranks that have a batch.

    A step that is traced again, by one rank alone, finds what the ranks have registered when they
    traced it first: by the place of the call among those of the step, and the shape.

    Args:
        x: Symbolic floating-point tensor of a known shape.
        op: `"sum"` or `"mean"`.
    """
    if op not in ("sum", "mean"):
        raise ValueError(
            'Inside of a compiled step `op` must be "sum" or "mean". Call it outside of '
            f"tf.function for others. Received: op={op!r}"
        )
    if None in tuple(x.shape):
        raise ValueError(
            "Inside of a compiled step the shape of `x` must be known, since the ranks agree on it "
            f"beforehand: reduce the batch first, as by a mean. Received: x of shape {x.shape}"
        )
    graph = backends.require().scope()
    places = _calls.setdefault(graph, collections.Counter())
    shape = tuple(x.shape)
    key = (places[shape], shape)
    places[shape] += 1
    sums = attendance.current_sums(_of_custom_loops)
    if key not in sums:
        sums[key] = StepSum(f"allreduce {key[0] + 1} in the step", (math.prod(shape) + 1,))
    flat = ops.cast(ops.reshape(x, (-1,)), "float32")
    # With them travels how many they are.
    total = sums[key](ops.concatenate([flat, ops.ones((1,), "float32")]))
    result = total[:-1] / total[-1] if op == "mean" else total[:-1]
    return ops.cast(ops.reshape(result, shape), x.dtype)
