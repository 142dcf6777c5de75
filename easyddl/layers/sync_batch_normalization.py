"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from easyddl import backends
from easyddl.collectives.arguments import comparable_name
from easyddl.compat import keras_layer, patches
from easyddl.compat.keras_layer import MomentsBatchNormalization
from easyddl.reducer.in_step_sum import InStepRows
from easyddl.runtime import notices, validators, world
from easyddl.steps import context


@keras.saving.register_keras_serializable("easyddl")
class SyncBatchNormalization(MomentsBatchNormalization):
    """`keras.layers.BatchNormalization` with the moments of all ranks' batches.

    In training it normalizes with the mean and the variance that one process would compute over
    the batches of all ranks. These batches may differ in size. Gradients are propagated through
    the moments. Use this layer if a rank's own batch is too small for good moments. In inference,
    and with a single rank, it works like Keras's layer. Its moving statistics are the same on all
    ranks.

    A call with `training=True` is a collective: all ranks must train together. The ranks' moments
    are merged as in Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", 1979, which avoids the loss of digits in sums of squares. They are
    gathered as float32 numbers, even in float64 models.

    Input and output shapes are those of `keras.layers.BatchNormalization`.

    Args:
        **arguments: The arguments of `keras.layers.BatchNormalization`, except `synchronized`.

    Raises:
        ValueError: If `synchronized=True` is passed.

    Example:
    ```python
    model = keras.Sequential([keras.layers.Conv2D(8, 3), ddl.SyncBatchNormalization()])
    ```
    """

    is_synchronized_by_easyddl = True

    def __init__(self, **arguments: Any) -> None:
        if arguments.pop("synchronized", False):
            raise ValueError(
                "`synchronized` is for tf.distribute. Leave it out, because easyddl synchronizes "
                "this layer. Received: synchronized=True"
            )
        super().__init__(**arguments)
        patches.add(self, "_rows", None, lasts=True)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("synchronized", None)
        return config

    def moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super().moments(inputs, mask)
        if world.size() == 1 or backends.require().infers_shapes(mean):
            return mean, variance
        dtype = mean.dtype  # float32, or float64
        mean, variance = ops.cast(mean, "float32"), ops.cast(variance, "float32")
        count = ops.reshape(_count(inputs, mask, self.axis), (1,))
        mine = ops.concatenate([count, mean, variance])
        rows = self._rows_of(mine.shape[0])(mine)
        joined = _joined(ops.stop_gradient(rows[:, :1]), *ops.split(rows[:, 1:], 2, axis=1))
        return tuple(ops.cast(moment, dtype) for moment in joined)

    def _rows_of(self, length):
        def make(place=0):
            return InStepRows(f"the moments of {comparable_name(self.name)}", length)

        # A fit has its own sums, one for each call within a step, because calls may run in any
        # order.
        step = context.running_step()
        if step is not None:
            return step.join.sum_at_this_place(("moments", length), make)
        if self._rows is None:
            patches.replace(self, "_rows", make(), lasts=True)
        return self._rows


def _count(inputs, mask, axis):
    """Returns the number of elements of each channel. The channels lie along `axis`."""
    if mask is None:
        lengths = list(ops.shape(inputs))
        del lengths[axis]
        # Lengths that are known are multiplied before they are sent to a device.
        known = [float(each) for each in lengths if isinstance(each, int)]
        others = [ops.cast(each, "float32") for each in lengths if not isinstance(each, int)]
        return ops.cast(math.prod([*known, *others]), "float32")
    rest = ops.size(inputs) // (ops.size(mask) * inputs.shape[-1])
    return ops.sum(ops.cast(mask, "float32")) * ops.cast(rest, "float32")


def _joined(counts, means, variances):
    """Merges the moments of the ranks.

    Args:
        counts: Tensor of shape `(ranks, 1)`. The number of elements of each rank.
        means: Tensor of shape `(ranks, channels)`.
        variances: Tensor of shape `(ranks, channels)`.

    Returns:
        The mean and the variance over all ranks, each of shape `(channels,)`.
    """
    total = ops.sum(counts)
    mean = ops.sum(counts * means, axis=0) / total
    variance = ops.sum(counts * (variances + ops.square(means - mean)), axis=0) / total
    return mean, variance


def sync_batch_norm(model: keras.Model) -> keras.Model:
    """Copies a model, with `SyncBatchNormalization` instead of `BatchNormalization`.

    Args:
        model: A Sequential or functional Keras model. It may contain models of these kinds.

    Returns:
        A new model with the same weights, which is not compiled. The root warns of layers inside of
        other layers and of subclassed models, which stay as they are.

    Raises:
        TypeError: If `model` is of another kind. Use the layer itself in a subclassed model.

    Example:
    ```python
    model = ddl.sync_batch_norm(keras.applications.ResNet50(weights=None))
    model.compile(...)
    ```
    """
    validators.instance_of_keras_3("model", model, keras.Model, "keras.Sequential([...])")
    try:
        copy = keras.models.clone_model(model, clone_function=_converted, recursive=True)
    except ValueError as problem:
        raise TypeError(
            "`model` must be a Sequential or functional Keras model. In a subclassed model use "
            "ddl.SyncBatchNormalization itself. "
            f"Received: model of type {type(model).__name__} ({problem})"
        ) from problem
    copy.set_weights(model.get_weights())
    left = [
        each.path
        for each in keras_layer.layers_of(copy)
        if isinstance(each, keras.layers.BatchNormalization)
        and not isinstance(each, SyncBatchNormalization)
    ]
    if left and world.size() > 1:
        notices.tell(
            "warning: sync_batch_norm() leaves layers as they are that are inside of other layers "
            f"or subclassed models, or of a subclass: {', '.join(left)}. Each rank normalizes its "
            "own batch there. Use ddl.SyncBatchNormalization in them."
        )
    return copy


def _converted(layer):
    config = layer.get_config()
    if type(layer) is not keras.layers.BatchNormalization:
        return type(layer).from_config(config)
    config.pop("synchronized", None)
    return SyncBatchNormalization.from_config(config)
