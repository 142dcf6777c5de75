"""`ddl.predict` on every rank of one job, compared with `model.predict` in one process."""

import contextlib
import io

import keras
import numpy as np
import pytest
from mpi import run_checks

import easyddl as ddl

RANK, SIZE = ddl.rank(), ddl.size()
BACKEND = keras.backend.backend()
BATCH = 4
# None of all, fewer batches than ranks, a whole number of batches for each, and a rest.
SAMPLES = [1, 3, BATCH, BATCH * SIZE, 2 * BATCH * SIZE + 1, 7 * BATCH + 2]


def numbers(samples, seed=0):
    return np.random.default_rng(seed).normal(size=(samples, 5)).astype("float32")


@keras.saving.register_keras_serializable()
class TwoOutputs(keras.Model):
    """Returns a dictionary, and depends on what else is in the batch."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return {"mean": keras.ops.mean(x, axis=0) + 0 * x, "dense": self.dense(x)}


def new_model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,))
    outputs = keras.layers.Dense(2)(keras.layers.Dense(7, activation="tanh")(inputs))
    return keras.Model(inputs, outputs)


def check_arrays():
    model = new_model()
    for samples in SAMPLES:
        x = numbers(samples)
        found = ddl.predict(model, x, batch_size=BATCH, verbose=0)
        expected = model.predict(x, batch_size=BATCH, verbose=0)
        np.testing.assert_array_equal(found, expected)
    first, second = (layer for layer in model.layers if layer.weights)
    hidden = np.tanh(x @ first.get_weights()[0] + first.get_weights()[1])
    by_hand = hidden @ second.get_weights()[0] + second.get_weights()[1]
    np.testing.assert_allclose(found, by_hand, rtol=1e-5, atol=1e-6)


def check_the_default_batch_size():
    model, x = new_model(), numbers(32 * SIZE + 5)
    for arguments in ({}, {"steps": 3}):
        found = ddl.predict(model, x, verbose=0, **arguments)
        np.testing.assert_array_equal(found, model.predict(x, verbose=0, **arguments))


def check_batches_are_those_of_one_process():
    model = TwoOutputs()
    model(numbers(2))
    model.set_weights([np.full_like(each, 0.5) for each in model.get_weights()])
    x = numbers(5 * BATCH + 1)
    found = ddl.predict(model, x, batch_size=BATCH, verbose=0)
    assert sorted(found) == ["dense", "mean"]
    for start in range(0, len(x), BATCH):
        rows = slice(start, start + BATCH)
        mean = np.broadcast_to(x[rows].mean(axis=0), x[rows].shape)
        np.testing.assert_allclose(found["mean"][rows], mean, rtol=1e-5, atol=1e-6)


def check_each_rank_predicts_its_part():
    seen = []

    class Counting(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            seen.append(index)
            return (numbers(BATCH, index),)

    model, data = new_model(), Counting(workers=1)
    found = ddl.predict(model, data, verbose=0)
    per_rank = ddl.allgather_object(sorted(set(seen)))
    assert sorted(i for part in per_rank for i in part) == list(range(5)), per_rank
    expected = [model.predict(numbers(BATCH, i), batch_size=BATCH, verbose=0) for i in range(5)]
    np.testing.assert_array_equal(found, np.concatenate(expected))


def check_nested_inputs_and_steps():
    a, b = keras.Input((5,), name="a"), keras.Input((5,), name="b")
    model = keras.Model({"a": a, "b": b}, keras.layers.Add()([a, b]))
    x = {"a": numbers(30), "b": numbers(30, 1)}
    found = ddl.predict(model, x, batch_size=BATCH, steps=3, verbose=0)
    np.testing.assert_allclose(found, (x["a"] + x["b"])[: 3 * BATCH], rtol=1e-6)


def check_datasets():
    if BACKEND != "torch":
        import tensorflow as tf

        x = numbers(7 * BATCH + 2)
        dataset = tf.data.Dataset.from_tensor_slices(x).batch(BATCH)
        model = new_model()
        expected = model.predict(x, batch_size=BATCH, verbose=0)
        np.testing.assert_array_equal(ddl.predict(model, dataset, verbose=0), expected)
        with pytest.raises(ValueError, match="unknown cardinality"):
            ddl.predict(model, dataset.filter(lambda x: True), verbose=0)
        unordered = dataset.map(lambda x: x, num_parallel_calls=2, deterministic=False)
        with pytest.raises(ValueError, match="deterministic=False"):
            ddl.predict(model, unordered, verbose=0)
    else:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        x = numbers(7 * BATCH + 2)
        model, data = new_model(), TensorDataset(torch.from_numpy(x))
        expected = model.predict(x, batch_size=BATCH, verbose=0)
        loader = DataLoader(data, batch_size=BATCH)
        np.testing.assert_array_equal(ddl.predict(model, loader, verbose=0), expected)
        with pytest.raises(ValueError, match="shuffle=True"):
            ddl.predict(model, DataLoader(data, batch_size=BATCH, shuffle=True), verbose=0)


def check_wrong_arguments():
    model, x = new_model(), numbers(9)
    for arguments, kind, text in (
        ({"x": x, "batch_size": 0}, ValueError, "batch_size=0"),
        ({"x": x, "steps": "all"}, ValueError, "steps='all'"),
        ({"model": object(), "x": x}, TypeError, "instance of a Keras 3 model"),
        ({"x": x[:0]}, ValueError, "at least one sample"),
        ({"x": (x, x[:4])}, ValueError, r"\[9, 4\]"),
        ({"x": [1.0, 2.0]}, TypeError, "float"),
        ({"x": iter([x])}, TypeError, "list_iterator"),
    ):
        with pytest.raises(kind, match=text):
            ddl.predict(**{"model": model, "verbose": 0} | arguments)
    assert ddl.allreduce(1, op="sum") == SIZE


def check_ranks_that_disagree():
    model = new_model()
    with pytest.raises(RuntimeError, match=r"of 1[0-9]* batches"):
        ddl.predict(model, numbers(40 * (RANK + 1)), batch_size=4, verbose=0)
    with pytest.raises((RuntimeError, ValueError), match="at least one sample"):
        ddl.predict(model, numbers(9 if RANK else 0), verbose=0)
    with pytest.raises(RuntimeError, match="different numbers of weights before predict"):
        ddl.predict(TwoOutputs() if RANK else model, numbers(9), verbose=0)
    if RANK == 1:
        model.layers[-1].bias.assign_add([0.0, 1.0])
    with pytest.raises(RuntimeError, match=r"models differ before predict.*broadcast_variables"):
        ddl.predict(model, numbers(9), verbose=0)
    assert ddl.allreduce(1, op="sum") == SIZE


def check_a_callback_shows_one_bar():
    class Predict(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            ddl.predict(self.model, numbers(3 * BATCH * SIZE), batch_size=BATCH)

    model, x, y = new_model(), numbers(2 * BATCH), np.ones((2 * BATCH, 2))
    model.compile("sgd", "mse")
    callbacks = [ddl.DDLCallback(), Predict(), ddl.DDLGlobalVariablesCallback()]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks)
    bars = ddl.allgather_object(text.getvalue().count("1/3"))
    assert bars == [2] + [0] * (SIZE - 1), text.getvalue()


def check_models_that_differ():
    normalization = keras.layers.Normalization()
    normalization.adapt(numbers(9, seed=RANK))
    model = keras.Sequential([keras.Input((5,)), normalization, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if RANK == 0:  # the variables of the optimizer have no effect on predictions
        model.train_on_batch(numbers(9), np.ones((9, 1)))
    x, y, callbacks = numbers(9), np.ones((9, 1)), [ddl.DDLCallback()]

    def evaluate():
        return model.evaluate(x, y, verbose=0, callbacks=callbacks)

    model.predict(x, verbose=0)  # compiles with the rank's own means
    for act in (evaluate, lambda: ddl.predict(model, x, verbose=0)):
        with pytest.raises(RuntimeError, match=r"models differ before.*broadcast_variables"):
            act()
    ddl.broadcast_variables(model.weights)
    found = ddl.allgather_object(ddl.predict(model, x, batch_size=BATCH, verbose=0).tobytes())
    assert len(set(found)) == 1
    alone = model.predict(x, batch_size=BATCH, verbose=0)
    assert found[0] == alone.tobytes()
    assert np.isclose(evaluate(), np.mean((alone - y) ** 2), rtol=1e-4)


def check_one_rank_fails():
    class Failing(keras.utils.PyDataset):
        def __len__(self):
            return 4 * SIZE

        def __getitem__(self, index):
            if index == 4 * SIZE - 1:
                raise OSError("no such image")
            return (numbers(BATCH),)

    with pytest.raises((RuntimeError, OSError), match="no such image"):
        ddl.predict(new_model(), Failing(workers=1), verbose=0)
    assert ddl.allreduce(1, op="sum") == SIZE


if __name__ == "__main__":
    run_checks(globals())
