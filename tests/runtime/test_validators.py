"""Checks of arguments that are objects of another Keras."""

import keras
import pytest

import easyddl as ddl


class OfKeras2:
    """Stands for an optimizer or a model of the package tf_keras."""


@pytest.mark.parametrize(
    ("receive", "name"),
    [
        (ddl.DistributedOptimizer, "optimizer"),
        (ddl.sync_batch_norm, "model"),
        (ddl.DDLCallback().set_model, "model"),
        (ddl.DDLGlobalVariablesCallback().set_model, "model"),
        (ddl.ProgressCallback().set_model, "model"),
        (ddl.ModelCheckpoint("m.keras").set_model, "model"),
        (ddl.BackupAndRestore("backup").set_model, "model"),
        (ddl.LearningRateScheduleCallback(0.1, 1).set_model, "model"),
        (ddl.RankZero(keras.callbacks.Callback()).set_model, "model"),
    ],
)
def test_objects_of_another_keras_are_an_error(receive, name):
    with pytest.raises(TypeError, match=f"`{name}` must be .* Keras 3 .* Received: .*OfKeras2"):
        receive(OfKeras2())


def test_a_class_in_place_of_an_optimizer_is_an_error():
    with pytest.raises(TypeError, match=r"Received: <class .*SGD"):
        ddl.DistributedOptimizer(keras.optimizers.SGD)
