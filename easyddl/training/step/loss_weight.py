"""The loss weight: the denominator of a batch's loss, which weights the batch's gradients.

A loss is a mean over a batch: a sum over its samples, or over the tokens that a mask keeps,
divided by their number. The gradient of the mean over the batches of all ranks is the mean of the
ranks' gradients, weighted by these denominators.
"""

import contextlib
import functools
import inspect

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_layer, keras_trainer, patches, user_code
from easyddl.runtime import world
from easyddl.steps.batch_weight import UNWEIGHTED
from easyddl.training.step import scalar_losses
from easyddl.training.step.recorded_losses import RecordedLosses, classes_of, is_in_step


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
    is_own = not user_code.is_of_keras(original)
    classes, lengths = classes_of(model.loss), {}
    for layer in keras_layer.layers_of(model):
        keras_layer.adds_sum_of_activity(layer)  # a graph could not tell

    @functools.wraps(original)
    def compute_loss(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        x = given.get("x")
        samples = _samples(list(given.values()) if x is None else x)
        # An own method with Keras's older arguments is not told.
        if not given.get("training", world.size() == 1 or is_in_step()):
            with _output_losses_weighted(model, samples):
                return original(*args, **kwargs)
        kind = kind_of_scalars
        if kind is None and (world.size() == 1 or scalar_losses.warn_of_batch_losses(model)):
            kind = "mean"  # without a further warning
        losses = RecordedLosses(kind, samples, lengths, (*args, *kwargs.values()))
        with contextlib.ExitStack() as stack:
            stack.enter_context(_output_losses_weighted(model, samples))
            if is_own:  # what it adds itself is a part of the number that it returns
                stack.enter_context(_super_observed(losses, kind))
                if kind is None:
                    note = functools.partial(losses.note_read, model)
                    stack.enter_context(keras_layer.reading_observed(note))
            else:
                stack.enter_context(scalar_losses.added_losses_scaled(model, kind))
            stack.enter_context(losses.recording(classes))
            loss = original(*args, **kwargs)
        if type(loss) in (int, float) and loss == 0 and is_in_step():
            loss = ops.zeros(())
        if not hasattr(loss, "shape"):
            return loss  # of a method of another meaning, whose results a `train_step` uses
        if len(loss.shape) > 0:
            weight.set(UNWEIGHTED)
            return _with_gradient_of_sum(loss)
        is_constant = is_in_step() and not backends.require().has_gradient(loss)
        loss, found = losses.finish(loss, is_own)
        # As that of a rank whose batch has no label. Any other constant is an error of Keras.
        if is_constant and (found is losses.samples or loss == 0):
            found = ops.zeros(()) if found is None else found
            loss = loss + 0.0 * sum(map(ops.sum, model.trainable_variables))
        weight.set(losses.samples if found is None else found)
        return loss

    return patches.replace(model, "compute_loss", backends.require().uncompiled(compute_loss))


def _super_observed(losses, kind):
    """Returns a context for the calls of Keras's `compute_loss` by an own one.

    Args:
        losses: The `RecordedLosses`, which note the sample weights.
        kind: The kind of the losses that layers have added, which Keras's method scales by it.
    """
    original = keras.Model.compute_loss
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compute_loss(*args, **kwargs):
        arguments = signature.bind(*args, **kwargs).arguments
        losses.note_weights(arguments.get("sample_weight"))
        with scalar_losses.added_losses_scaled(arguments["self"], kind):
            loss = original(*args, **kwargs)
        losses.note_result_of_keras(loss)
        return loss

    return patches.replaced(keras.Model, "compute_loss", compute_loss)


def _with_gradient_of_sum(loss):
    """Scales the gradient of a loss that is not reduced, as that of a sum is scaled.

    TensorFlow computes the gradient of such a loss's sum. The values of the loss do not change,
    because Keras reports them.
    """
    scaled = backends.require().differentiable(
        ops.convert_to_tensor, lambda upstream: upstream * world.size()
    )
    return scaled(loss)


def _samples(x):
    """Returns the number of samples of the first array; `None` without arrays."""
    arrays = [each for each in keras.tree.flatten(x) if len(getattr(each, "shape", ())) > 0]
    return ops.shape(arrays[0])[0] if arrays else None


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
