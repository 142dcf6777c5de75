"""What each rank gets of what an iterator yields."""

import inspect
import itertools

import pytest

from easyddl import split_data


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("count", [0, 1, 2, 12, 13, 14])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_gets_every_kth_element(split, size, count, remainder):
    kept = count - count % size if remainder == "drop" else count
    for rank, part in enumerate(split(size, lambda: iter(range(count)), remainder=remainder)):
        assert list(part) == [i for i in range(kept) if i % size == rank]


def test_a_generator_comes_back_as_keras_wants_it(at):
    at(1, 2)
    for source in (iter([1, 2]), (i for i in [1, 2]), map(int, "12"), itertools.count()):
        assert inspect.isgenerator(split_data(source))


def test_endless_ones_stay_endless(at):
    at(2, 3)
    assert list(itertools.islice(split_data(itertools.count()), 4)) == [2, 5, 8, 11]


def test_elements_may_be_none(at):
    at(1, 2)
    assert list(split_data(iter([1, None, 3, None]))) == [None, None]


@pytest.mark.parametrize("shuffle", [True, "epoch"])
def test_no_shuffle(at, shuffle):
    at(0, 2)
    with pytest.raises(ValueError, match=r"cannot shuffle .* Received: shuffle="):
        split_data(iter([1, 2]), shuffle=shuffle)
