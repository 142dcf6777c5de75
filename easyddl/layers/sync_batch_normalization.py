"""Batch normalization by the batches of all ranks together."""

import re

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import patches
from easyddl.compat.keras_layer import MomentsBatchNormalization
from easyddl.reducer.in_step_sum import StepRows
from easyddl.runtime import join, world


@keras.saving.register_keras_serializable("easyddl")
class SyncBatchNormalization(MomentsBatchNormalization):
    """`keras.layers.BatchNormalization` by the moments of all ranks' batches together.

    In training it normalizes with the mean and the variance that one process would compute of
    all ranks' batches, which may differ in size; gradients pass through these. Use it where a
    rank's own batch is too small for good moments. In inference it is Keras's layer. Its moving
    statistics are the same on all ranks.

    All ranks must train together where it is called with `training=True`. In a world of one it is
    Keras's layer. Moments of several ranks are joined as in Chan, Golub and LeVeque, "Updating
    Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979: without the loss of
    digits that sums of squares bring. They travel as float32 numbers, also in float64 models.

    Args:
        **arguments: Those of `keras.layers.BatchNormalization`, but for `synchronized`.

    Example:
    ```python
    model = keras.Sequential([keras.layers.Conv2D(8, 3), ddl.SyncBatchNormalization()])
    ```
    """

    is_synchronized_by_easyddl = True

    def __init__(self, **arguments):
        if arguments.pop("synchronized", False):
            raise ValueError(
                "`synchronized` is for tf.distribute: leave it out, since this layer is "
                "synchronized by easyddl. Received: synchronized=True"
            )
        super().__init__(**arguments)
        patches.add(self, "_rows", None)

    def get_config(self):
        config = super().get_config()
        config.pop("synchronized", None)
        return config

    def moments(self, inputs, mask):
        mean, variance = super().moments(inputs, mask)
        if world.size() == 1 or backends.require().infers_shapes(mean):
            return mean, variance
        dtype = mean.dtype  # float32, or float64
        mean, variance = ops.cast(mean, "float32"), ops.cast(variance, "float32")
        count = ops.reshape(_count(inputs, mask, self.reduction_axes), (1,))
        mine = ops.concatenate([count, mean, variance])
        rows = self._rows_of(mine.shape[0])(mine)
        joined = _joined(ops.stop_gradient(rows[:, :1]), *ops.split(rows[:, 1:], 2, axis=1))
        return tuple(ops.cast(moment, dtype) for moment in joined)

    def _rows_of(self, length):
        def make(place=0):
            return StepRows(f"the moments of {_name_without_number(self.name)}", length)

        # A fit has its own, one for each call within a step: calls may run in any order.
        fit = join.current()
        if fit is not None and fit.is_in_step:
            return fit.sum_in_step(("moments", length), make)
        if self._rows is None:
            patches.replace(self, "_rows", make())
        return self._rows


def _name_without_number(name):
    # The number counts the layers made before, which may differ by rank.
    return re.sub(r"_\d+$", "", name)


def _count(inputs, mask, axes):
    """How many elements each channel has."""
    if mask is not None:
        rest = ops.size(inputs) // (ops.size(mask) * inputs.shape[-1])
        return ops.sum(ops.cast(mask, "float32")) * ops.cast(rest, "float32")
    lengths = [ops.shape(inputs)[axis] for axis in axes]
    return ops.prod(ops.cast(ops.stack([ops.convert_to_tensor(n) for n in lengths]), "float32"))


def _joined(counts, means, variances):
    """The moments of all samples, from those of each rank's."""
    total = ops.sum(counts)
    mean = ops.sum(counts * means, axis=0) / total
    variance = ops.sum(counts * (variances + ops.square(means - mean)), axis=0) / total
    return mean, variance


def sync_batch_norm(model):
    """A copy of a model with `SyncBatchNormalization` in place of `BatchNormalization`.

    Args:
        model: A Sequential or functional Keras model, whose layers may be such models too.

    Returns:
        A new model with the same weights, which is not compiled.

    Raises:
        TypeError: If `model` is no such model: use the layer itself in a model that you
            subclass.

    Example:
    ```python
    model = ddl.sync_batch_norm(keras.applications.ResNet50(weights=None))
    model.compile(...)
    ```
    """
    try:
        copy = keras.models.clone_model(model, clone_function=_converted, recursive=True)
    except ValueError as problem:
        raise TypeError(
            "`model` must be a Sequential or functional Keras model. In a model of your own class "
            "use ddl.SyncBatchNormalization itself. "
            f"Received: model of type {type(model).__name__} ({problem})"
        ) from problem
    copy.set_weights(model.get_weights())
    return copy


def _converted(layer):
    config = layer.get_config()
    if type(layer) is not keras.layers.BatchNormalization:
        return type(layer).from_config(config)
    config.pop("synchronized", None)
    return SyncBatchNormalization.from_config(config)
