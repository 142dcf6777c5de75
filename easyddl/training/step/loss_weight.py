"""The loss weight: the denominator of a batch's loss, which weights the batch's gradients.

A loss is a mean over a batch: a sum over its samples, or over the tokens that a mask keeps,
divided by their number. The gradient of the mean over the batches of all ranks is the mean of the
ranks' gradients, weighted by these denominators.
"""

import contextlib
import dataclasses
import inspect
import weakref

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_loss, keras_trainer, patches, user_code
from easyddl.reducer import allreduce
from easyddl.runtime import world
from easyddl.steps import context
from easyddl.steps.batch_weight import UNWEIGHTED
from easyddl.training.step import scalar_losses

# Represents the denominator of a loss that is weighted by the number of samples of its batch.
_BY_SAMPLES = object()

_selects = {}  # results of `_selects_values`, by the id of the loss


def hook(model, weight, kind_of_scalars):
    """Makes a model's `compute_loss` record the loss weight of each training batch.

    Losses with `reduction="sum"` are multiplied by the number of ranks, so that the mean over the
    ranks is their sum. The regularizers are equal on all ranks and are left unchanged.

    Args:
        model: A compiled Keras model.
        weight: The `BatchWeight` in which the weight is recorded.
        kind_of_scalars: `"mean"`, `"sum"` or `None`. The kind of losses that arrive as one number:
            see `DDLCallback`.

    Returns:
        Function that removes the hook.
    """
    original = model.compute_loss
    signature = inspect.signature(original)  # a model's own may have other arguments

    def compute_loss(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        x = given.get("x")
        samples = _samples(list(given.values()) if x is None else x)
        # An own method with Keras's older arguments is not told.
        if not given.get("training", world.size() == 1 or _is_in_step()):
            with _output_losses_weighted(model, samples):
                return original(*args, **kwargs)
        kind = kind_of_scalars
        if kind is None and (world.size() == 1 or scalar_losses.warn_of_batch_losses(model)):
            kind = "mean"  # without a further warning
        with contextlib.ExitStack() as stack:
            stack.enter_context(_output_losses_weighted(model, samples))
            stack.enter_context(scalar_losses.added_losses_scaled(model, kind))
            denominators = stack.enter_context(_denominators_recorded(kind, samples))
            loss = original(*args, **kwargs)
        if loss is not None and len(loss.shape) > 0:
            weight.set(UNWEIGHTED)
            return _with_gradient_of_sum(loss)
        if not denominators and not user_code.is_of_keras(type(model).compute_loss):
            if kind is None:
                scalar_losses.warn_of_unknown_kind("an own compute_loss returns one number")
            if kind == "sum":
                weight.set(UNWEIGHTED)
                return loss * world.size()
        weight.set(_total(denominators, samples))
        return loss

    return patches.replace(model, "compute_loss", backends.require().uncompiled(compute_loss))


def _with_gradient_of_sum(loss):
    """Scales the gradient of a loss that is not reduced, as that of a sum is scaled.

    TensorFlow computes the gradient of such a loss's sum. The values of the loss do not change,
    because Keras reports them.
    """
    scaled = backends.require().differentiable(
        ops.convert_to_tensor, lambda upstream: upstream * world.size()
    )
    return scaled(loss)


def _total(denominators, samples):
    """Returns the weight of a batch.

    Args:
        denominators: List of the denominators of the batch's losses, as recorded.
        samples: Scalar tensor. The number of samples of the batch; `None` without inputs.
    """
    if any(each is UNWEIGHTED for each in denominators):
        return UNWEIGHTED
    if denominators and not any(each is _BY_SAMPLES for each in denominators):
        return sum(denominators[1:], start=denominators[0])
    # Without a denominator the loss is the user's own, or consists of `add_loss` only. It is
    # treated as a mean over samples.
    return samples


def _samples(x):
    """Returns the number of samples of the first array; `None` without arrays."""
    arrays = [each for each in keras.tree.flatten(x) if len(getattr(each, "shape", ())) > 0]
    return ops.cast(ops.shape(arrays[0])[0], "float32") if arrays else None


def changes_test_function(model):
    """Returns whether the hook changes how a model tracks its losses in tests.

    It does for models with several losses. Their `test_function` must be compiled with the hook.
    """
    if keras.tree.is_nested(model.loss):
        return True
    # A Sequential has one output. Its `outputs` raises an error before the model is built.
    is_sequential = isinstance(model, keras.Sequential)
    return not is_sequential and len(getattr(model, "outputs", None) or []) > 1


def _output_losses_weighted(model, samples):
    """Returns a context in which the tracked loss of each output is weighted by its samples.

    Keras weights the total loss by the samples, but the loss of each output only if the batch size
    is fixed. Otherwise the tracked value is a mean over batches, which is wrong if the batches
    differ in size.
    """
    original = keras.metrics.Mean.update_state

    def update_state(self, values, sample_weight=None):
        if sample_weight is None and keras_trainer.tracks_loss_of_output(model, self):
            sample_weight = samples
        return original(self, values, sample_weight=sample_weight)

    return patches.replaced(keras.metrics.Mean, "update_state", update_state)


@contextlib.contextmanager
def _denominators_recorded(kind_of_scalars, samples):
    """Returns a context that records the denominator of each loss that is computed in it.

    All losses of Keras and of users that subclass them call one function of Keras, which receives
    their masks and weights. This context replaces that function, and the method of losses that
    calls it.

    Args:
        kind_of_scalars: `"mean"`, `"sum"` or `None`. The kind of losses that arrive as one number.
        samples: Scalar float32 tensor. The number of samples of the batch; `None` without inputs.

    Yields:
        List, to which the denominators are appended.
    """
    original, original_call = keras_loss.reduction(), keras.losses.Loss.__call__
    denominators = []
    calls = [_Call(0, False)]  # a loss may call others; the innermost last

    def call(loss, y_true, y_pred, sample_weight=None):
        calls.append(_Call(len(denominators), None))
        try:
            selects = world.size() > 1 and _selects_values(loss, y_true, y_pred)
            calls[-1] = _Call(len(denominators), selects)
            return original_call(loss, y_true, y_pred, sample_weight)
        finally:
            calls.pop()

    def reduce(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        loss = original(values, sample_weight, mask, reduction, dtype)
        if any(each.selects is None for each in calls):
            return loss  # of a trace, whose values are not those of the step
        if len(values.shape) == 0:  # already reduced by the loss function
            # A sum of Keras's that the function has called is scaled already.
            has_sum = UNWEIGHTED in denominators[calls[-1].begun :]
            if kind_of_scalars is None and not has_sum:
                scalar_losses.warn_of_unknown_kind("a loss function returns one number")
            reduction = "sum" if kind_of_scalars == "sum" else None
        if reduction == "sum":
            denominators.append(UNWEIGHTED)
            # The function that calls this loss returns a number, which is scaled as a whole.
            is_part = kind_of_scalars == "sum" and len(calls) > 2
            return loss if is_part else loss * world.size()
        if len(values.shape) == 0:
            return loss
        denominator = _denominator(values, sample_weight, mask, reduction)
        has_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
        is_reduced = reduction not in (None, "none")
        is_uneven = is_reduced and (calls[-1].selects or mask is not None or has_weights)
        if is_uneven and samples is not None and _is_in_step():
            denominators.append(_BY_SAMPLES)
            return _weighted_by_samples(loss, denominator, samples)
        denominators.append(denominator)
        return loss

    with (
        keras_loss.reduction_replaced(reduce),
        patches.replaced(keras.losses.Loss, "__call__", call),
    ):
        yield denominators


def _is_in_step():
    return world.size() > 1 and context.running_step() is not None


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a loss.

    Attributes:
        begun: Integer. How many denominators were recorded before it.
        selects: Boolean: see `_selects_values`; `None` while that is found out.
    """

    begun: int
    selects: bool | None


def _selects_values(loss, y_true, y_pred):
    """Returns whether a loss may drop samples, for example those without a label.

    Keras's own losses do not. The result follows from the code of the loss and from the shapes, so
    it is the same on all ranks.
    """
    key = id(loss)  # a dataclass has no hash
    if key not in _selects:
        code = type(loss), getattr(loss, "fn", type(loss))
        if all(map(user_code.is_of_keras, code)):
            return False
        arguments = keras.tree.map_structure(
            lambda x: ops.convert_to_tensor(x, dtype=loss.dtype), (y_true, y_pred)
        )
        _selects[key] = not backends.require().has_fixed_shape(loss.call, arguments)
        weakref.finalize(loss, _selects.pop, key, None)
    return _selects[key]


def _weighted_by_samples(loss, denominator, samples):
    """Returns a loss with the value over all ranks, whose gradient is weighted by samples.

    With masks, weights or dropped samples, the losses of a step have different shares of the ranks.
    This factor turns the mean weighted by samples into the mean weighted by denominators. Therefore
    one weight is right for all losses of a step and for losses that layers add. Keras weights the
    values that it reports by samples, so it reports the value of one process.

    Args:
        loss: Scalar tensor. The loss of this rank's batch.
        denominator: Scalar float32 tensor. Its denominator.
        samples: Scalar float32 tensor. The number of samples of the batch.
    """
    # A mean over no values may be NaN, and on PyTorch Keras returns the empty values.
    loss = ops.where(denominator > 0, ops.sum(loss), 0)
    mine = ops.stack([ops.cast(loss, "float32") * denominator, denominator, samples])
    total = allreduce.in_step(ops.stop_gradient(mine), "sum")
    share = ops.divide_no_nan(denominator, total[1]) / ops.divide_no_nan(samples, total[2])
    scaled = loss * ops.stop_gradient(ops.cast(share, loss.dtype))
    mean = ops.cast(ops.divide_no_nan(total[0], total[1]), loss.dtype)
    return scaled + ops.stop_gradient(mean - scaled)


def _denominator(values, sample_weight, mask, reduction):
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = ops.cast(sample_weight, "float32")
        if mask is None:
            return ops.sum(weights)
        mask, weights = keras_loss.to_same_rank(ops.cast(mask, "float32"), weights)
        return ops.sum(weights * mask)
    count = _count(values)
    if mask is None:
        return count
    return count * ops.sum(ops.cast(mask, "float32")) / ops.maximum(_count(mask), 1)


def _count(x):
    return ops.cast(ops.prod(ops.convert_to_tensor(ops.shape(x), "int32")), "float32")
