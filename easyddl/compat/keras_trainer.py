"""The trainer: what a model's `compile`, `fit` and `evaluate` keep and call."""

import keras

from easyddl.compat import patches
from easyddl.compat.names import Name

NAMES = (
    Name(
        "keras.Model",
        "_symbolic_build",
        "a model that is not built has no variables to give to all ranks before the first step",
        takes=("iterator", "data_batch"),
    ),
    Name(
        "keras.Model",
        "_maybe_symbolic_build",
        "the data of a fit are not found, and an unbuilt model fails on a rank without a batch",
        backend="tensorflow",
        takes=("iterator", "data_batch"),
    ),
    Name(
        "keras.Model",
        "_maybe_symbolic_build",
        "the data of a fit are not found, and an unbuilt model fails on a rank without a batch",
        since=(3, 16),
        backend="jax",
        takes=("iterator", "data_batch"),
    ),
    Name(
        "keras.Model",
        "_get_metrics_result_or_logs",
        "fit and evaluate report the metrics of one rank's samples",
        takes=("logs",),
    ),
    Name(
        "keras.Model",
        "_should_eval",
        "a rank without validation data cannot join the others' validation",
    ),
    Name(
        "keras.Model",
        "_initial_epoch",
        "a backup cannot go on with the epoch that it was made in",
        is_set=True,
    ),
    Name(
        "keras.Model",
        "_compile_loss",
        "the losses of several outputs are not weighted by samples",
        is_set=True,
    ),
    Name(
        "keras.Model",
        "_loss_tracker",
        "a model that is compiled again trains with the step of its earlier compilation",
        is_set=True,
    ),
    Name(
        "keras.Model",
        "_compute_loss_has_training_arg",
        "losses cannot be computed by a model's own compute_loss",
        is_set=True,
    ),
    Name("keras.Model", "train_function", "the steps of a fit are not counted", is_set=True),
    Name("keras.Model", "test_function", "tests keep the step of a fit", is_set=True),
    Name("keras.Model", "make_train_function", "on JAX steps cannot be measured"),
    Name("keras.Model", "make_test_function", "on JAX a rank without a batch cannot validate"),
    Name(
        "keras.Model",
        "_distribute_strategy",
        "a model made under tf.distribute is not refused",
        is_set=True,
        backend="tensorflow",
    ),
    Name(
        "keras.Model",
        "_initialize_ddp",
        "a job that has initialised torch.distributed is not refused",
        since=(3, 16),
        backend="torch",
    ),
)

# Keras builds a model by one of these as a fit begins. The first is there on TensorFlow, and from
# Keras 3.16 on JAX; it calls the second with a batch.
_BUILDERS = ("_maybe_symbolic_build", "_symbolic_build")

_RESULTS = "_get_metrics_result_or_logs"


def build(model, batch):
    """Makes the variables of a compiled model, and of its metrics, losses and optimizer.

    Args:
        model: A compiled Keras model.
        batch: Nested structure of `keras.KerasTensor`, as the data have it.
    """
    model._symbolic_build(data_batch=batch)


def builder_of(model):
    """What Keras builds a model by as a fit or an evaluation begins.

    Returns:
        Function `build(iterator=None, data_batch=None)` of Keras's epoch iterator or of a batch.
    """
    return getattr(model, _builder(model))


def replace_builder(model, function):
    """Has Keras build a model by another function as a fit or an evaluation begins.

    Returns:
        Function that undoes the replacement.
    """
    return patches.replace(model, _builder(model), function)


def _builder(model):
    return next(name for name in _BUILDERS if hasattr(model, name))


def results_of(model):
    """What makes the logs that a fit reports after an epoch, and an evaluation at its end.

    Returns:
        Function of the logs of the last step.
    """
    return getattr(model, _RESULTS)


def replace_results(model, function):
    """Has a fit and an evaluation report what another function makes of the last step's logs.

    Returns:
        Function that undoes the replacement.
    """
    return patches.replace(model, _RESULTS, function)


def validates_after(model, epoch, frequency):
    """Whether `fit(validation_freq=frequency)` validates after an epoch, counted from 0."""
    return model._should_eval(epoch, frequency)


def initial_epoch(model):
    """The epoch that a backup has set for a fit to begin with; `None` if none has."""
    return model._initial_epoch


def set_initial_epoch(model, epoch):
    """Has a model's fits begin with an epoch; `None` for that of their arguments.

    Returns:
        Function that undoes it.
    """
    return patches.replace(model, "_initial_epoch", epoch)


def compilation_of(model):
    """An object that is another one each time that the model is compiled."""
    return model._loss_tracker


def tracks_loss_of_output(model, metric):
    """Whether a metric holds the loss of one of a model's outputs."""
    compiled = getattr(model, "_compile_loss", None)
    return any(metric is each for each in getattr(compiled, "metrics", []))


def takes_training(model):
    """Whether a model's `compute_loss` has the argument `training`."""
    return model._compute_loss_has_training_arg


def strategy_of(model):
    """The strategy of `tf.distribute` that a model was made in, or `None`. TensorFlow only."""
    return model._distribute_strategy


def wraps_in_ddp():
    """Whether Keras wraps models in PyTorch's `DistributedDataParallel`. PyTorch only."""
    return hasattr(keras.Model, "_initialize_ddp")
