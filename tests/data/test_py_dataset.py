"""What each rank gets of a `keras.utils.PyDataset`."""

import keras
import numpy as np
import pytest

from easyddl import split_data
from easyddl.data import set_epoch

SIZES = [1, 2, 3]


class Batches(keras.utils.PyDataset):
    """Batches that hold their own number."""

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.calls = []

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        assert type(index) is int
        return np.full((2, 1), index, "float32"), np.full((2,), index, "float32")

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def numbers(dataset):
    return [int(x[0, 0]) for x, _ in (dataset[i] for i in range(dataset.num_batches))]


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("count", [12, 13, 14])
@pytest.mark.parametrize("size", SIZES)
def test_batches_are_split_whole(split, size, count, remainder):
    kept = count - count % size if remainder == "drop" else count
    for rank, part in enumerate(split(size, Batches(count), remainder=remainder)):
        assert numbers(part) == list(range(rank, kept, size))
        assert len(part) == part.num_batches


def test_endless_ones_stay_endless(at):
    at(1, 3)
    part = split_data(Batches(None))
    assert part.num_batches is None
    assert [int(part[i][1][0]) for i in range(3)] == [1, 4, 7]


def test_another_number_of_batches_in_the_next_epoch(at):
    at(1, 2)
    inner = Batches(8)
    part = split_data(inner)
    inner.count = 4
    assert numbers(part) == [1, 3]


def test_settings_and_hooks_are_handed_on(at):
    at(0, 2)
    inner = Batches(8, workers=3, use_multiprocessing=True, max_queue_size=5)
    part = split_data(inner)
    assert (part.workers, part.use_multiprocessing, part.max_queue_size) == (3, True, 5)
    part.on_epoch_begin()
    part.on_epoch_end()
    part.on_epoch_begin()
    assert inner.calls == ["begin", "end", "begin"]


class Seen(keras.layers.Layer):
    """Keeps what the model was given."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    def call(self, x):
        self.numbers.append(int(np.asarray(x)[0, 0]))
        return x


def seen_in_fit(data, **arguments):
    """The numbers of the batches that `fit` takes, in their order."""
    seen = Seen()
    model = keras.Sequential([seen, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.build((None, 1))
    seen.numbers.clear()
    model.fit(data, verbose=0, **arguments)
    return seen.numbers


@pytest.mark.parametrize("use_multiprocessing", [False, True])
def test_workers_read_for_fit(at, use_multiprocessing):
    at(1, 3)
    part = split_data(Batches(12, workers=2, use_multiprocessing=use_multiprocessing))
    assert seen_in_fit(part, shuffle=False, epochs=2) == [1, 4, 7, 10] * 2


@pytest.mark.parametrize("shuffle", [True, "epoch"])
def test_shuffled(split, shuffle):
    parts = split(3, Batches(31), shuffle=shuffle, seed=3)
    orders = []
    for epoch in range(2):
        for part in parts:
            part.set_epoch(epoch)
        permutation = np.random.default_rng(3 if shuffle is True else [3, epoch]).permutation(31)
        for rank, part in enumerate(parts):
            assert numbers(part) == permutation[:30][rank::3].tolist()
        orders.append(numbers(parts[0]))
    assert (orders[0] == orders[1]) == (shuffle is True)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fit_takes_the_order_of_each_epoch(at, workers):
    at(0, 2)
    part = split_data(Batches(8, workers=workers), shuffle="epoch")
    tell = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, _: set_epoch.set_epochs(part, epoch)
    )
    # With Keras's own shuffle=True, which is the default.
    found = seen_in_fit(part, initial_epoch=5, epochs=8, callbacks=[tell])
    want = [np.random.default_rng([0, epoch]).permutation(8)[::2] for epoch in (5, 6, 7)]
    assert found == np.concatenate(want).tolist()


def test_a_fit_that_tells_no_epochs_counts_them(at):
    at(0, 2)
    found = seen_in_fit(split_data(Batches(8), shuffle="epoch"), epochs=3)
    want = [np.random.default_rng([0, epoch]).permutation(8)[::2] for epoch in range(4)]
    # Keras may begin an epoch to build the model.
    assert found in [np.concatenate(want[i : i + 3]).tolist() for i in (0, 1)]


def test_endless_ones_cannot_be_shuffled(at):
    at(0, 2)
    with pytest.raises(ValueError, match="never end"):
        split_data(Batches(None), shuffle="epoch")


def test_fewer_batches_than_ranks(at):
    at(0, 3)
    with pytest.raises(ValueError, match=r"Received: 2 batch\(s\) for 3 rank\(s\)"):
        split_data(Batches(2))


def test_the_root_says_what_is_left_out(at, capsys):
    at(0, 3)
    split_data(Batches(14))
    assert "left out 2 of 14 batches" in capsys.readouterr().err
