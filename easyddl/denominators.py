"""By what the losses of a batch were divided, which is what its gradients count for.

A loss is a mean over a batch: a sum over its samples, or over those of its tokens that a mask
keeps, divided by how many these are. The gradient of the mean over all ranks' batches is the mean
of the ranks' gradients, weighted by these denominators.
"""

import contextlib

import keras
from keras import ops
from keras.src.losses import loss as keras_loss

from easyddl import backends, world

# What stands for the weight of gradients of a sum over samples, which have none (`kPlain` in
# ext/control_word.h).
PLAIN = -1.0

_hooked = []


class BatchWeight:
    """What the gradients of a model's step count for, as far as its losses tell.

    While it is hooked to a model, `compute_loss` tells it. Losses with `reduction="sum"` are
    multiplied by the number of ranks, so that the mean over the ranks is their sum; the
    regularizers, which are the same on all ranks, stay what they are.
    """

    def __init__(self):
        self._weight = None

    def hook(self, model):
        """Has a model's training losses noted.

        Returns:
            Function that takes the hook off again.
        """
        original = model.compute_loss

        def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
            with _losses_of_outputs_weighted(model, x):
                if not training:
                    return _call(model, original, x, y, y_pred, sample_weight, False)
                with _noted() as denominators:
                    loss = _call(model, original, x, y, y_pred, sample_weight, True)
            # What no gradient passes to, and so does not belong to what is differentiated.
            total = _total(denominators, x)
            self._weight = total if total is None or total is PLAIN else ops.stop_gradient(total)
            return loss

        object.__setattr__(model, "compute_loss", backends.require().uncompiled(compute_loss))
        _hooked.append(self)
        if _has_losses_of_outputs(model):
            model.test_function = None  # compiled without the hook, maybe

        def unhook():
            _hooked.remove(self)
            object.__delattr__(model, "compute_loss")
            if _has_losses_of_outputs(model):
                model.test_function = None

        return unhook

    def current(self):
        """The weight of the batch whose step is being traced or run.

        Returns:
            Scalar float32 tensor, `PLAIN`, or `None` where no loss has told.
        """
        if self._weight is None or self._weight is PLAIN:
            return self._weight
        return self._weight if backends.require().is_current(self._weight) else None

    @property
    def is_plain(self):
        """Whether the losses are sums."""
        return self._weight is PLAIN


def current():
    """The weight of the batch that the innermost fit takes a step with.

    Returns:
        Scalar float32 tensor; `None` where nothing has told, or ranks count alike.
    """
    weight = _hooked[-1].current() if _hooked else None
    return None if weight is PLAIN else weight


def _call(model, compute_loss, x, y, y_pred, sample_weight, training):
    if model._compute_loss_has_training_arg:
        return compute_loss(x, y, y_pred, sample_weight, training=training)
    return compute_loss(x, y, y_pred, sample_weight)


def _total(denominators, x):
    if any(each is PLAIN for each in denominators):
        return PLAIN
    if denominators:
        return sum(denominators[1:], start=denominators[0])
    # A loss of the user's own, or none but `add_loss`: a mean over samples, as far as one knows.
    return _samples(x)


def _samples(x):
    arrays = [each for each in keras.tree.flatten(x) if each is not None]
    return ops.cast(ops.shape(arrays[0])[0], "float32") if arrays else None


def _has_losses_of_outputs(model):
    if keras.tree.is_nested(model.loss):
        return True
    # A Sequential has one, and raises an error while it is not built.
    is_sequential = isinstance(model, keras.Sequential)
    return not is_sequential and len(getattr(model, "outputs", None) or []) > 1


@contextlib.contextmanager
def _losses_of_outputs_weighted(model, x):
    """Has the losses of several outputs tracked by the samples of the batches.

    Keras weighs the loss of all outputs by them, but each output's own only where the batch size
    is fixed. Else they are means over batches, which is not what unequal ones add up to.
    """
    original = keras.metrics.Mean.update_state

    def update_state(self, values, sample_weight=None):
        compiled = getattr(model, "_compile_loss", None)
        if sample_weight is None and any(self is each for each in getattr(compiled, "metrics", [])):
            sample_weight = _samples(x)
        return original(self, values, sample_weight=sample_weight)

    keras.metrics.Mean.update_state = update_state
    try:
        yield
    finally:
        keras.metrics.Mean.update_state = original


@contextlib.contextmanager
def _noted():
    """Notes the denominator of each loss that is computed meanwhile.

    All of Keras's losses, and those of users that subclass them, come by this one function, which
    knows their masks and weights.
    """
    original = keras_loss.reduce_weighted_values
    denominators = []

    def reduce(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        loss = original(values, sample_weight, mask, reduction, dtype)
        if len(values.shape) == 0:
            return loss  # reduced by the loss itself
        if reduction == "sum":
            denominators.append(PLAIN)
            return loss * world.size()
        denominators.append(_denominator(values, sample_weight, mask, reduction))
        return loss

    keras_loss.reduce_weighted_values = reduce
    try:
        yield denominators
    finally:
        keras_loss.reduce_weighted_values = original


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
