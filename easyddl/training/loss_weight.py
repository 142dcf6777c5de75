"""By what the losses of a batch were divided, which is what its gradients count for.

A loss is a mean over a batch: a sum over its samples, or over those of its tokens that a mask
keeps, divided by how many these are. The gradient of the mean over all ranks' batches is the mean
of the ranks' gradients, weighted by these denominators.
"""

import contextlib

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_loss, keras_trainer, patches
from easyddl.reducer import allreduce
from easyddl.reducer.batch_weight import UNWEIGHTED
from easyddl.runtime import context, world
from easyddl.training import scalar_losses

# Stands for the denominator of a loss that counts by the samples of its batch.
_BY_SAMPLES = object()


def hook(model, weight, kind_of_scalars):
    """Has a model's `compute_loss` tell by what the losses of a training batch were divided.

    Losses with `reduction="sum"` are multiplied by the number of ranks, so that the mean over the
    ranks is their sum; the regularizers, which are the same on all ranks, stay what they are.

    Args:
        model: A compiled Keras model.
        weight: `BatchWeight`, which is told.
        kind_of_scalars: `"mean"`, `"sum"` or `None`. What losses are that come as one number: see
            `DDLCallback`.

    Returns:
        Function that takes the hook off again.
    """
    original = model.compute_loss

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not training:
            with _losses_of_outputs_weighted(model, x):
                return _call(model, original, x, y, y_pred, sample_weight, False)
        kind = kind_of_scalars
        if kind is None and (world.size() == 1 or scalar_losses.has_none_of_samples(model)):
            kind = "mean"  # without another warning
        with contextlib.ExitStack() as around:
            around.enter_context(_losses_of_outputs_weighted(model, x))
            around.enter_context(scalar_losses.added_scaled(model, kind))
            denominators = around.enter_context(_noted(kind, _samples(x)))
            loss = _call(model, original, x, y, y_pred, sample_weight, True)
        if loss is not None and len(loss.shape) > 0:
            weight.set(UNWEIGHTED)
            return _summed(loss)
        weight.set(_total(denominators, _samples(x)))
        return loss

    return patches.replace(model, "compute_loss", backends.require().uncompiled(compute_loss))


def _summed(loss):
    """A loss that is not reduced, of which TensorFlow takes the gradient of the sum.

    Its values stay what Keras reports; its gradient counts as that of a sum.
    """
    scaled = backends.require().differentiable(
        ops.convert_to_tensor, lambda upstream: upstream * world.size()
    )
    return scaled(loss)


def _call(model, compute_loss, x, y, y_pred, sample_weight, training):
    if keras_trainer.takes_training(model):
        return compute_loss(x, y, y_pred, sample_weight, training=training)
    return compute_loss(x, y, y_pred, sample_weight)


def _total(denominators, samples):
    if any(each is UNWEIGHTED for each in denominators):
        return UNWEIGHTED
    if denominators and not any(each is _BY_SAMPLES for each in denominators):
        return sum(denominators[1:], start=denominators[0])
    # Or a loss of the user's own, or none but `add_loss`: a mean over samples, as far as one knows.
    return samples


def _samples(x):
    arrays = [each for each in keras.tree.flatten(x) if each is not None]
    return ops.cast(ops.shape(arrays[0])[0], "float32") if arrays else None


def changes_tests_of(model):
    """Whether the hook changes how a model's tests track the losses.

    Such a model has several losses. Its `test_function` must be compiled with the hook.
    """
    if keras.tree.is_nested(model.loss):
        return True
    # A Sequential has one, and raises an error while it is not built.
    is_sequential = isinstance(model, keras.Sequential)
    return not is_sequential and len(getattr(model, "outputs", None) or []) > 1


def _losses_of_outputs_weighted(model, x):
    """Has the losses of several outputs tracked by the samples of the batches.

    Keras weighs the loss of all outputs by them, but each output's own only where the batch size
    is fixed. Else they are means over batches, which is not what unequal ones add up to.
    """
    original = keras.metrics.Mean.update_state

    def update_state(self, values, sample_weight=None):
        if sample_weight is None and keras_trainer.tracks_loss_of_output(model, self):
            sample_weight = _samples(x)
        return original(self, values, sample_weight=sample_weight)

    return patches.replaced(keras.metrics.Mean, "update_state", update_state)


@contextlib.contextmanager
def _noted(kind_of_scalars, samples):
    """Notes the denominator of each loss that is computed meanwhile.

    All of Keras's losses, and those of users that subclass them, come by this one function, which
    knows their masks and weights.

    Args:
        kind_of_scalars: `"mean"`, `"sum"` or `None`: what losses are that come as one number.
        samples: How many samples the batch has, as a float32 tensor, or `None`.
    """
    original = keras_loss.reduction()
    denominators = []

    def reduce(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        loss = original(values, sample_weight, mask, reduction, dtype)
        if len(values.shape) == 0:  # reduced by the loss itself
            if kind_of_scalars is None:
                scalar_losses.warn_of_unknown("a loss function returns one number")
            reduction = "sum" if kind_of_scalars == "sum" else None
        if reduction == "sum":
            denominators.append(UNWEIGHTED)
            return loss * world.size()
        if len(values.shape) == 0:
            return loss
        denominator = _denominator(values, sample_weight, mask, reduction)
        has_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
        if (mask is not None or has_weights) and samples is not None and _is_in_step():
            denominators.append(_BY_SAMPLES)
            return _by_samples(loss, denominator, samples)
        denominators.append(denominator)
        return loss

    with keras_loss.reduction_replaced(reduce):
        yield denominators


def _is_in_step():
    join = context.join()
    return world.size() > 1 and join is not None and join.is_in_step


def _by_samples(loss, denominator, samples):
    """A loss with the value of all ranks' batches, whose gradient counts by samples.

    Masks and weights give each loss other shares of the ranks. What is multiplied here makes the
    mean that is weighted by samples the one that is weighted by denominators: so all losses of a
    step, and what layers add, can have one weight. And Keras, which weighs what it reports by
    samples, reports what one process would.
    """
    mine = ops.stack([ops.cast(loss, "float32") * denominator, denominator, samples])
    total = allreduce.in_step(ops.stop_gradient(mine), "sum")
    share = ops.divide_no_nan(denominator, total[1]) / ops.divide_no_nan(samples, total[2])
    scaled = loss * ops.stop_gradient(ops.cast(share, loss.dtype))
    everyones = ops.cast(ops.divide_no_nan(total[0], total[1]), loss.dtype)
    return scaled + ops.stop_gradient(everyones - scaled)


def _denominator(values, sample_weight, mask, reduction):
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = ops.cast(sample_weight, "float32")
        if mask is None:
            return ops.sum(weights)
        mask, weights = keras_loss.squeeze_or_expand_to_same_rank(
            ops.cast(mask, "float32"), weights
        )
        return ops.sum(weights * mask)
    count = _count(values)
    if mask is None:
        return count
    return count * ops.sum(ops.cast(mask, "float32")) / ops.maximum(_count(mask), 1)


def _count(x):
    return ops.cast(ops.prod(ops.convert_to_tensor(ops.shape(x), "int32")), "float32")
