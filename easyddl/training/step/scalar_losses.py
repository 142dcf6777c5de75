"""Losses that arrive as one number, so that easyddl cannot know whether it is a mean or a sum.

A layer adds such a loss with `add_loss`, and a user's loss function may return one. The mean over
the ranks is right for a mean over samples. A sum must be multiplied by the number of ranks.
"""

import contextlib

import keras

from easyddl.compat import keras_layer
from easyddl.runtime import notices, world

KINDS = ("mean", "sum")

# Keras's losses that are computed from a whole batch, Dice and Tversky only without an `axis`.
_BATCH_LOSSES = ("Dice", "Tversky", "Circle")


@contextlib.contextmanager
def added_losses_scaled(model, kind):
    """Returns a context that scales the losses that layers have added, by their kind.

    Args:
        model: A Keras model that has been called.
        kind: `"mean"` or `"sum"`. `None` treats them as means and prints a warning.
    """
    losses = model.losses
    added = [is_added(model, loss) for loss in losses]
    if not any(added):
        yield
        return
    if kind is None:
        warn_of_unknown_kind("a layer adds a loss by add_loss() or activity_regularizer=")
    if kind != "sum":
        yield
        return
    pairs = zip(losses, added, strict=True)
    scaled = [loss * world.size() if is_added else loss for loss, is_added in pairs]
    with keras_layer.losses_replaced(model, scaled):
        yield


def is_added(model, loss):
    """Returns whether a layer has added a loss that may be a sum.

    Keras's own layers add the loss of their `activity_regularizer`, which current versions divide
    by the batch size. The losses of weight regularizers belong to no layer and are equal on all
    ranks.
    """
    return any(
        keras_layer.has_added(layer, loss)
        for layer in keras_layer.layers_of(model)
        if isinstance(layer, keras.Model)
        or not type(layer).__module__.startswith("keras.")
        or keras_layer.adds_sum_of_activity(layer)
    )


def warn_of_unknown_kind(source):
    """Warns once that a loss is treated as a mean over the batch.

    Args:
        source: String. Which code produces the loss, as the beginning of a sentence.
    """
    _warn(
        f"{source}, which is treated as a mean over the samples of the batch. If it is a mean, "
        'pass ddl.DDLCallback(scalar_losses="mean") to suppress this warning. If it is a sum, pass '
        'ddl.DDLCallback(scalar_losses="sum"). If it compares the samples of a batch with each '
        "other, each rank compares the samples of its own batch only."
    )


def warn_of_added_sum(what, mean):
    """Warns once that an own `compute_loss` adds what may be a sum to a mean.

    Args:
        what: String. What it adds.
        mean: String. To what it adds it.
    """
    _warn(
        f"an own compute_loss adds {what} to {mean}, which is treated as a mean over the samples "
        'of the batch. If it is a mean, pass ddl.DDLCallback(scalar_losses="mean") to suppress '
        "this warning. If it is a sum, multiply it by ddl.size()."
    )


def warn_of_different_lengths():
    """Warns once that an own `compute_loss` adds means over different samples."""
    _warn(
        "an own compute_loss computes losses of different numbers of samples. Their gradients get "
        "one weight, so they differ slightly from those of one process. Pass each of these losses "
        "to compile(), for its output of the model."
    )


def warn_of_batch_losses(model):
    """Warns once if a loss of a model is one of Keras's losses that are not means over samples.

    Returns:
        Boolean: whether the model has such a loss.
    """
    names = map(_name_of_batch_loss, keras.tree.flatten(getattr(model, "loss", None)))
    found = [name for name in names if name is not None]
    for name in found:
        _warn_of_batch_loss(name)
    return bool(found)


def _warn_of_batch_loss(name):
    if name == "Circle":
        _warn(
            "the loss Circle compares the samples of a batch with each other, and each rank "
            "compares the samples of its own batch only. Therefore the mean over the ranks differs "
            "from the loss that one process would compute with the samples of all ranks. Pass "
            "batches of the size that one process would take."
        )
    else:
        _warn(
            f"the loss {name} is computed from a whole batch and is not a mean over samples. "
            "Therefore the mean over the ranks differs from the loss that one process would "
            "compute with the samples of all ranks. Pass an `axis` without 0, for example "
            f"keras.losses.{name}(axis=(1, 2, 3)), to compute a loss for each sample."
        )


def _name_of_batch_loss(loss):
    """Returns the name of Keras's class if a loss is computed from a whole batch; else `None`."""
    if isinstance(loss, str):
        return {name.lower(): name for name in _BATCH_LOSSES}.get(loss.lower())
    for name in _BATCH_LOSSES:
        cls = getattr(keras.losses, name, None)
        function = getattr(keras.losses, name.lower(), None)
        if loss is not None and loss in (cls, function):
            return name
        if cls is not None and isinstance(loss, cls):
            axis = getattr(loss, "axis", None)
            axes = keras.tree.flatten(axis)
            return name if axis is None or 0 in axes else None
    return None


def _warn(text):
    notices.tell_once(text, f"warning: {text}")
