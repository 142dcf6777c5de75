"""The trainer: attributes and functions that `compile`, `fit` and `evaluate` use."""

import keras

from easyddl.compat import keras_data, patches
from easyddl.compat.names import Name, several

_UNBUILT = "an unbuilt model fails on a rank without a batch"
_MAYBE_BUILD = "_maybe_symbolic_build(iterator, data_batch)"

NAMES = (
    Name("keras.Model", _MAYBE_BUILD, _UNBUILT, backend="tensorflow"),
    Name("keras.Model", _MAYBE_BUILD, _UNBUILT, since=(3, 16), backend="jax"),
    *several(
        "keras.Model",
        {
            "_symbolic_build(iterator, data_batch)": "the variables of an unbuilt model cannot be "
            "broadcast before the first step",
            "_get_metrics_result_or_logs(logs)": "fit and evaluate report the metrics of one "
            "rank's samples",
            "_should_eval": "a rank without validation data cannot join the others' validation",
            "make_train_function": "on JAX steps cannot be measured",
            "make_test_function": "on JAX a rank without a batch cannot validate",
        },
    ),
    *several(
        "keras.Model",
        {
            "_initial_epoch": "training cannot resume in the epoch in which a backup was made",
            "_compile_loss": "the losses of several outputs are not weighted by samples",
            "_compile_config": "ranks that compile a model with other losses are not found",
            "_loss_tracker": "a model that is compiled again trains with its earlier step",
            "train_function": "the steps of a fit are not counted",
            "test_function": "tests keep the step of a fit",
        },
        is_set=True,
    ),
    Name(
        "keras.Model",
        "_initialize_ddp",
        "a job that has initialised torch.distributed raises no error",
        since=(3, 16),
        backend="torch",
    ),
)

# Keras builds a model with one of these methods when a fit begins. The first one exists on
# TensorFlow, and on JAX since Keras 3.16. It calls the second one with a batch.
_BUILDERS = ("_maybe_symbolic_build", "_symbolic_build")

# A method of the logs of the last step. It makes the logs of an epoch, and the results of an
# evaluation.
RESULTS = "_get_metrics_result_or_logs"


def build(model, batch):
    """Creates the variables of a compiled model, and of its metrics, losses and optimizer.

    Args:
        model: A compiled Keras model.
        batch: `keras.KerasTensor`s, nested as the arrays of a batch are.
    """
    model._symbolic_build(data_batch=batch)


def wrap_builder(model, wrap):
    """Wraps the method with which Keras builds a model when a fit or an evaluation begins.

    Args:
        model: A Keras model.
        wrap: Function of the method, which is `build(iterator=None, data_batch=None)` of Keras's
            epoch iterator or of a batch. It returns the wrapper.

    Returns:
        Function without arguments that undoes the change.
    """
    name = next(name for name in _BUILDERS if hasattr(model, name))
    return patches.replace(model, name, wrap(getattr(model, name)))


def defer_without_batch(model):
    """Makes Keras leave a model unbuilt if its data contain no batch, instead of raising an error.

    Keras builds a model, its optimizer and its metrics from the first batch. On JAX and PyTorch it
    does so before it calls any callback. A rank without a batch later builds from the structure of
    the other ranks' batches.

    Args:
        model: A Keras model.

    Returns:
        Function without arguments that undoes the change.
    """

    def deferred(original):
        def build(iterator=None, data_batch=None):
            if iterator is None:
                return original(data_batch=data_batch)
            try:
                return original(keras_data.OneBatch(lambda: keras_data.first_batch(iterator)))
            except keras_data.NoBatch:
                return None

        return build

    return wrap_builder(model, deferred)


def validates_after(model, epoch, frequency):
    """Returns whether `fit(validation_freq=frequency)` validates after an epoch, from 0."""
    return model._should_eval(epoch, frequency)


def initial_epoch(model):
    """Returns the epoch at which a fit starts because of a backup; `None` without a backup."""
    return model._initial_epoch


def set_initial_epoch(model, epoch):
    """Makes a model's fits start at an epoch; `None` leaves it to their arguments.

    Returns:
        Function without arguments that undoes the change.
    """
    return patches.replace(model, "_initial_epoch", epoch)


def compilation_of(model):
    """Returns an object that identifies the last `compile` of a model."""
    return model._loss_tracker


def loss_variables(model):
    """Returns those of Keras's metric of the loss, which a model's `metrics` may leave out."""
    return getattr(model._loss_tracker, "variables", [])


def compile_arguments_of(model):
    """Returns the arguments of the last `compile` of a model, by name."""
    kept = getattr(model, "_compile_config", None)
    return dict(getattr(kept, "config", None) or {})


def tracks_loss_of_output(model, metric):
    """Returns whether a metric is the loss of one of a model's outputs."""
    compiled = getattr(model, "_compile_loss", None)
    return any(metric is each for each in getattr(compiled, "metrics", []))


def wraps_in_ddp():
    """Returns whether Keras wraps models in PyTorch's `DistributedDataParallel`."""
    return hasattr(keras.Model, "_initialize_ddp")
