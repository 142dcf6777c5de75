"""Whether the installed Keras has the private names that easyddl uses, and whether that is seen."""

import ast
import importlib
import pathlib
import re

import keras
import numpy as np
import pytest
from keras.src.losses import loss
from keras.src.trainers import epoch_iterator
from keras.src.trainers.data_adapters import array_data_adapter, py_dataset_adapter
from keras.src.utils import module_utils

import easyddl
import easyddl as ddl
from easyddl.compat import check, names
from easyddl.compat.names import Name

COMPAT = pathlib.Path(ddl.__file__).parent / "compat"


def test_the_installed_keras_has_all_names():
    assert check.missing() == [], names.message(check.missing())


def test_a_method_that_is_gone(monkeypatch):
    monkeypatch.delattr(keras.Layer, "_flatten_layers")
    (found,) = check.missing()
    assert (found.owner, found.name) == ("keras.Layer", "_flatten_layers")
    with pytest.warns(RuntimeWarning) as told:
        check.warn_of_missing()
    text = str(told[0].message)
    for part in (keras.__version__, "keras.Layer._flatten_layers", found.consequence, "Install"):
        assert part in text


def test_a_function_of_a_module_that_is_gone(monkeypatch):
    monkeypatch.delattr(loss, "reduce_weighted_values")
    assert [each.name for each in check.missing()] == ["reduce_weighted_values"]


def test_a_function_that_takes_other_parameters(monkeypatch):
    monkeypatch.setattr(loss, "reduce_weighted_values", lambda values, weight=None: None)
    assert [each.name for each in check.missing()] == ["reduce_weighted_values"]


@pytest.mark.parametrize(
    "gone",
    [
        Name("keras.Model", "_gone", "", is_set=True),
        Name("keras.Model", "_gone", ""),
        Name("keras.gone.Model", "fit", ""),
        Name("keras.src.gone", "function", ""),
        Name("keras.Model", "fit(x, gone)", ""),
    ],
)
def test_a_name_that_was_never_there(gone):
    assert names.absent([gone]) == [gone]
    with pytest.raises(RuntimeError, match=re.escape(str(gone))):
        gone.require()


@pytest.mark.parametrize("name", [{"since": (99, 0)}, {"backend": "another"}])
def test_a_name_that_other_versions_and_backends_have(name):
    assert names.absent([Name("keras.Model", "_gone", "", **name)]) == []


def test_it_is_looked_for_at_import(monkeypatch):
    monkeypatch.delattr(keras.Layer, "_flatten_layers")
    with pytest.warns(RuntimeWarning, match=re.escape("keras.Layer._flatten_layers")):
        importlib.reload(easyddl.callbacks)


def test_what_keras_would_not_call_is_refused(monkeypatch, tmp_path):
    monkeypatch.delattr(keras.layers.BatchNormalization, "_moments")
    with pytest.raises(RuntimeError, match="_moments"):
        ddl.SyncBatchNormalization()
    monkeypatch.delattr(keras.callbacks.ModelCheckpoint, "_save_model")
    with pytest.raises(RuntimeError, match="_save_model"):
        ddl.ModelCheckpoint(tmp_path / "model.keras")


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.ones((2, 3), "float32"), np.ones((2, 1), "float32")


def fitted(optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer, "mse")
    model.fit(Batches(), verbose=0)
    return model


@pytest.fixture(scope="module")
def instances():
    """An object of each class whose attributes easyddl uses."""
    accumulating = keras.optimizers.SGD(gradient_accumulation_steps=2)
    rmsprop = keras.optimizers.RMSprop(momentum=0.9)
    model = fitted(accumulating)
    fitted(rmsprop)
    iterator = epoch_iterator.EpochIterator(Batches())
    of_backend = {}
    if keras.backend.backend() == "tensorflow":
        from keras.src.backend.tensorflow import trainer

        of_backend[f"{trainer.__name__}.TFEpochIterator"] = trainer.TFEpochIterator(
            x=Batches(), distribute_strategy=model.distribute_strategy
        )
    return of_backend | {
        "keras.Model": model,
        "keras.Layer": model.layers[0],
        "keras.Variable": model.weights[0],
        "keras.Metric": keras.metrics.Mean(),
        "keras.callbacks.Callback": keras.callbacks.Callback(),
        "keras.callbacks.SwapEMAWeights": keras.callbacks.SwapEMAWeights(),
        "keras.optimizers.Optimizer": accumulating,
        "keras.optimizers.RMSprop": rmsprop,
        "keras.optimizers.LossScaleOptimizer": keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD()
        ),
        "keras.src.trainers.epoch_iterator.EpochIterator": iterator,
        "keras.src.utils.module_utils.LazyModule": module_utils.tensorflow,
        f"{array_data_adapter.__name__}.ArrayDataAdapter": array_data_adapter.ArrayDataAdapter(
            np.ones((2, 3))
        ),
        f"{py_dataset_adapter.__name__}.PyDatasetAdapter": iterator.data_adapter,
        f"{py_dataset_adapter.__name__}.PyDatasetEnqueuer": py_dataset_adapter.OrderedEnqueuer(
            Batches()
        ),
    }


@pytest.mark.parametrize("name", [name for name in check.NAMES if name.is_set], ids=str)
def test_attributes_are_set_on_instances(name, instances):
    # The check itself makes no instances.
    if name.is_expected():
        assert hasattr(instances[name.owner], name.name)


def private_names_in(path):
    tree = ast.parse(path.read_text())
    found = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    found += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    own = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own += [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    return {name for name in found if re.fullmatch(r"_[a-z]\w*", name)}, own


@pytest.mark.parametrize("path", sorted(COMPAT.glob("keras_*.py")), ids=lambda path: path.stem)
def test_each_name_that_is_used_is_looked_up(path):
    used, own = private_names_in(path)
    listed = {name.name for name in check.NAMES}
    assert used - set(own) <= listed
