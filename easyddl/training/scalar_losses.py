"""Losses that come as one number, of which nobody knows whether it is a mean or a sum.

A layer adds such a loss with `add_loss`, and a loss function of the user's own may return one. The
mean over the ranks is right for means over samples. Sums must be multiplied by the number of ranks.
"""

import contextlib

import keras

from easyddl.compat import keras_layer
from easyddl.runtime import notices, world

KINDS = ("mean", "sum")


@contextlib.contextmanager
def added_scaled(model, kind):
    """Has the losses that a model's layers have added count as a kind.

    Args:
        model: A model that has been called.
        kind: `"mean"`, `"sum"`, or `None` for means, with a warning.
    """
    losses = model.losses
    added = [_is_added(model, loss) for loss in losses]
    if not any(added):
        yield
        return
    if kind is None:
        warn_of_unknown("a layer adds a loss by add_loss()")
    if kind != "sum":
        yield
        return
    pairs = zip(losses, added, strict=True)
    scaled = [loss * world.size() if is_added else loss for loss, is_added in pairs]
    with keras_layer.losses_replaced(model, scaled):
        yield


def _is_added(model, loss):
    """Whether a layer of the user's own has added a loss.

    What Keras's layers add is divided by the batch's size: their `activity_regularizer`. The
    regularizers of weights belong to no layer, and are the same on all ranks.
    """
    return any(
        keras_layer.has_added(layer, loss)
        for layer in keras_layer.layers_of(model)
        if isinstance(layer, keras.Model) or not type(layer).__module__.startswith("keras.")
    )


def warn_of_unknown(what):
    """Says once that a loss is taken for a mean over the batch."""
    _warn(
        f"{what}, which is taken for a mean over the samples of the batch. If it is one, pass "
        'ddl.DDLCallback(scalar_losses="mean") to leave this warning out; if it is a sum, '
        'ddl.DDLCallback(scalar_losses="sum").'
    )


def has_none_of_samples(model):
    """Whether a loss of a model is one of Keras's that are no means over samples: says so once."""
    found = False
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        name = _of_whole_batch(loss)
        if name is not None:
            found = True
            _warn(
                f"the loss {name} is one number of a whole batch, and no mean over its samples. So "
                "the mean over the ranks is not what one process would compute with all their "
                "samples. Pass an `axis` without 0, such as "
                f"keras.losses.{name}(axis=(1, 2, 3)), to have one of each sample."
            )
    return found


def _of_whole_batch(loss):
    if isinstance(loss, str):
        names = {"dice": "Dice", "tversky": "Tversky"}
        return names.get(loss.lower())
    for name in ("Dice", "Tversky"):
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
