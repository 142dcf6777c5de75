"""Arrays that are shuffled anew in every epoch."""

import contextlib
import importlib

import keras
import numpy as np
import pytest

from easyddl import split_data
from easyddl.data import set_epoch
from easyddl.training.fit import fit_context

SIZES = [1, 2, 3]


def order(seed, epoch, samples):
    """The order that all ranks share."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def batches(data):
    return [data[i] for i in range(data.num_batches)]


def samples_of(data):
    return np.concatenate([batch[0] for batch in batches(data)]).tolist()


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("samples", [24, 25, 101])
@pytest.mark.parametrize("size", SIZES)
def test_each_epoch_gives_each_sample_to_one_rank(split, size, samples, remainder):
    parts = split(size, np.arange(samples), shuffle="epoch", seed=2, remainder=remainder)
    kept = samples - samples % size if remainder == "drop" else samples
    for epoch in (0, 1, 7):
        for part in parts:
            part.set_epoch(epoch)
        each = [samples_of(part) for part in parts]
        assert max(map(len, each)) - min(map(len, each)) == (1 if kept % size else 0)
        together = np.concatenate(each).tolist()
        assert len(set(together)) == len(together) == kept
        for rank, found in enumerate(each):
            assert found == order(2, epoch, samples)[:kept][rank::size].tolist()


def test_orders_differ_by_epoch_and_seed():
    orders = {tuple(order(seed, epoch, 50)) for seed in (0, 1) for epoch in range(5)}
    assert len(orders) == 10


def test_a_step_of_all_ranks_is_one_of_one_process(split):
    parts = split(3, np.arange(60), shuffle="epoch", batch_size=4)
    (whole,) = split(1, np.arange(60), shuffle="epoch", batch_size=12)
    assert [len(part) for part in parts] == [5] * 3 == [len(whole)] * 3
    for step in range(5):
        together = np.concatenate([part[step][0] for part in parts])
        assert sorted(together) == sorted(whole[step][0])


def test_the_last_batch_may_be_smaller(at):
    at(0, 2)
    part = split_data(np.arange(21), shuffle="epoch", batch_size=4)
    assert [len(batch[0]) for batch in batches(part)] == [4, 4, 2]


def test_a_batch_has_32_samples_unless_told_otherwise(at):
    at(0, 2)
    part = split_data(np.arange(128), shuffle="epoch")
    assert [len(batch[0]) for batch in batches(part)] == [32, 32]


def test_x_y_and_weights_stay_together(at):
    at(1, 2)
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    ((found_x, found_y, weight),) = batches(split_data(x, y, y / 10, shuffle="epoch"))
    np.testing.assert_array_equal(found_x, x[found_y])
    np.testing.assert_allclose(weight, found_y / 10, rtol=1e-6)
    assert (found_x.dtype, found_y.dtype) == (np.float32, np.int64)  # as Keras takes arrays
    ((inputs, found_y),) = batches(split_data({"a": x, "b": (y,)}, y, None, shuffle="epoch"))
    np.testing.assert_array_equal(inputs["a"], x[found_y])
    np.testing.assert_array_equal(inputs["b"][0], found_y)


def kinds(tmp_path):
    """Ways to hold the rows of a table, as (name, what is passed)."""
    values = np.arange(39, dtype="float32").reshape(13, 3)
    yield "list", list(map(list, values))
    np.save(tmp_path / "x.npy", values)
    yield "memory map", np.load(tmp_path / "x.npy", mmap_mode="r")
    yield "tensor", keras.ops.convert_to_tensor(values)
    path = tmp_path / "x.h5"
    for name, make in {
        "pandas": lambda module: module.DataFrame(values),
        "scipy.sparse": lambda module: module.coo_matrix(values),
        "torch": lambda module: module.from_numpy(values),
        "h5py": lambda module: module.File(path, "w").create_dataset("x", data=values),
    }.items():
        with contextlib.suppress(ImportError):
            yield name, make(importlib.import_module(name))


def test_all_kinds_of_arrays(at, tmp_path):
    at(1, 2)
    values = np.arange(39, dtype="float32").reshape(13, 3)
    for name, leaf in kinds(tmp_path):
        part = split_data(leaf, shuffle="epoch", batch_size=4)
        for batch, rows in zip(batches(part), (slice(0, 4), slice(4, 8)), strict=True):
            assert type(batch[0]) is np.ndarray, name
            want = values[order(0, 0, 13)[:12][1::2][rows]]
            np.testing.assert_array_equal(batch[0], want, name)


def test_a_series_is_a_column(at):
    pandas = pytest.importorskip("pandas")
    at(0, 1)
    (batch,) = batches(split_data(pandas.Series([1, 2, 3]), shuffle="epoch"))
    assert batch[0].shape == (3, 1)  # as Keras has it


# What `fit` makes of it.


class Record(keras.layers.Layer):
    """Keeps what the model was given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        self.seen.extend(np.asarray(x)[:, 0].tolist())
        return x


def seen_in_fit(data, **arguments):
    record = Record()
    model = keras.Sequential([record, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.build((None, 1))
    record.seen.clear()

    def begin(epoch, logs):
        set_epoch.begin(fit_context.current(model).arguments["x"], epoch)

    tell = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
    model.fit(data, verbose=0, callbacks=[tell], **arguments)
    return record.seen


def column(samples):
    return np.arange(samples, dtype="float32")[:, None]


@pytest.mark.parametrize("workers", [1, 2])
def test_fit_takes_the_order_of_each_epoch(at, workers):
    at(1, 2)
    part = split_data(column(12), column(12), shuffle="epoch", batch_size=2)
    part.workers = workers
    found = seen_in_fit(part, initial_epoch=3, epochs=6)
    want = [order(0, epoch, 12)[1::2] for epoch in (3, 4, 5)]
    assert found == np.concatenate(want).tolist()


def test_with_fewer_steps_fit_takes_the_first_of_each_order(at):
    at(1, 2)
    part = split_data(column(12), column(12), shuffle="epoch", batch_size=2)
    found = seen_in_fit(part, epochs=3, steps_per_epoch=2)
    want = [order(0, epoch, 12)[1::2][:4] for epoch in range(3)]
    assert found == np.concatenate(want).tolist()
    assert len(part) == 3  # which is as it was


def test_class_weight_reaches_the_loss(at):
    at(0, 1)
    x, y = np.ones((4, 1), "float32"), np.array([0, 0, 0, 1])
    part = split_data(x, y, shuffle="epoch")
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    history = model.fit(part, class_weight={0: 1.0, 1: 8.0}, verbose=0).history
    assert history["loss"] == [pytest.approx(8 / 4)]


# What is refused.


def test_more_than_fit_takes(at):
    at(0, 2)
    with pytest.raises(ValueError, match="x, y and sample_weight"):
        split_data(*[np.arange(4)] * 4, shuffle="epoch")


def test_what_arrays_are_refused_for(at):
    at(0, 3)
    with pytest.raises(ValueError, match="at least one sample for each rank"):
        split_data(np.arange(2), shuffle="epoch")
    with pytest.raises(ValueError, match="same number of samples"):
        split_data(np.arange(4), np.arange(5), shuffle="epoch")


def test_the_root_says_how_many_are_left_out(at, capsys):
    at(0, 3)
    split_data(np.arange(11), shuffle="epoch")
    assert "left out 2 of 11 samples" in capsys.readouterr().err
