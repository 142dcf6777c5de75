"""`allreduce`, between steps and inside of a step."""

from __future__ import annotations

import math
import weakref

from keras import ops

from easyddl import backends
from easyddl.collectives import script
from easyddl.collectives.arguments import ArrayT, Op
from easyddl.collectives.passed_numbers import passed
from easyddl.reducer.in_step_sum import InStepSum
from easyddl.runtime import world
from easyddl.steps import context

# The sums of custom training loops, by the graph or the trace that they are in. What is compiled
# from a trace keeps its sums: see `Submitter`.
_custom_steps: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@world.on_all_ranks("allreduce()")
def allreduce(x: ArrayT, op: Op = "mean") -> ArrayT:
    """Reduces an array over all ranks, element by element.

    float16 and bfloat16 are summed in float32 and rounded once. The order of the summation depends
    only on the topology of the ranks, so that all ranks get the same bits, in every run.

    Inside of your own `train_step`, and in a `tf.function`, `allreduce` accepts floating-point
    tensors of a known shape, with `"mean"` and `"sum"`. It computes in float32, and it is
    differentiable. Ranks that have no batch in the step do not contribute. All ranks must make the
    same calls.

    Args:
        x: NumPy array, number, or tensor of the active Keras backend, of the same shape and
            dtype on all ranks: float16, bfloat16, float32, float64, int8 to int64, uint8, or
            bool (`"min"`, `"max"` and `"prod"` only).
        op: One of `"mean"` (floating-point only), `"sum"`, `"min"`, `"max"`, `"prod"`.
            Integers wrap around; a NaN on any rank is a NaN in the result.

    Returns:
        Array, number or tensor with the type, shape and dtype of `x`. Equal on all ranks.

    Raises:
        TypeError: If `x` is not an array of a supported dtype.
        ValueError: If `op` is unknown.
        RuntimeError: On all ranks, if they pass different shapes, dtypes or ops.

    Example:
    ```python
    total = ddl.allreduce(np.array([1.0, 2.0]), op="sum")  # [k, 2k] on k ranks
    ```
    """
    return _of_step(x, op) if _is_of_step(x) else script.allreduce(x, op)


# This attribute stops TensorFlow's AutoGraph from converting it in a user's tf.function.
allreduce.autograph_info__ = {}  # type: ignore[attr-defined]


def _is_of_step(x):
    """Returns whether `x` is a tensor in the step of a fit, or in a function being traced."""
    backend = backends.backend_of(x)
    if backend is None:
        return False
    in_step = context.running_step() is not None
    return backend.is_symbolic(x) or (in_step and "float" in str(x.dtype))


def _of_step(x, op):
    try:
        _check_in_step(x, op)
    except ValueError as error:
        # All ranks may have the same error, so it must not end all collectives.
        if context.join() is None:
            world.fail_alike("allreduce() in a step with a bad argument", error)
        context.join().give_up(error)
        raise
    if context.join() is None:
        passed.add_traced(math.prod(x.shape))
    return in_step(x, op)


def _check_in_step(x, op):
    if op not in ("sum", "mean"):
        raise ValueError(
            'Inside of a step `op` must be "sum" or "mean". For other operations call `allreduce` '
            f"outside of the step and of any tf.function. Received: op={op!r}"
        )
    if None in tuple(x.shape):
        raise ValueError(
            "Inside of a step the shape of `x` must be known, because the ranks compare it before "
            "the first step. Reduce the batch dimension first, for example by a mean. Received: "
            f"x of shape {x.shape}"
        )


def in_step(x, op):
    """Returns the sum or the mean of a tensor over all ranks that have a batch.

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
    """Returns the `InStepSum` for `x` and the number of participants. Registers it at first use."""

    def make(place):
        return InStepSum(f"allreduce {place + 1} in the step", (math.prod(shape) + 1,))

    step = context.running_step()
    if step is not None:
        return step.join.sum_at_this_place(("allreduce", shape), make)
    sums = _custom_steps.setdefault(backends.require().scope_of(x), [])
    sums.append(make(len(sums)))
    return sums[-1]
