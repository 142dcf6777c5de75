"""What each rank gets of Grain's datasets and loaders."""

import pytest

from easyddl import split_data

grain = pytest.importorskip("grain")

SIZES = [1, 2, 3]


def numbers(dataset):
    return [int(element) for element in dataset]


def source(count):
    return grain.MapDataset.range(count)


def loader(count, shards=None, **options):
    return grain.DataLoader(
        data_source=source(count),
        sampler=grain.samplers.IndexSampler(count, num_epochs=1, **options),
        shard_options=shards or grain.sharding.NoSharding(),
    )


@pytest.mark.parametrize("kind", [source, lambda n: source(n).to_iter_dataset(), loader])
@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("count", [12, 13, 14])
@pytest.mark.parametrize("size", SIZES)
def test_each_rank_gets_every_kth_element(split, size, count, remainder, kind):
    kept = count - count % size if remainder == "drop" else count
    for rank, part in enumerate(split(size, kind(count), remainder=remainder)):
        assert numbers(part) == list(range(rank, kept, size))


def test_each_comes_back_as_its_kind(at):
    at(0, 2)
    assert isinstance(split_data(source(4)), grain.MapDataset)
    assert isinstance(split_data(source(4).to_iter_dataset()), grain.IterDataset)
    assert isinstance(split_data(loader(4)), grain.DataLoader)


@pytest.mark.parametrize(
    "shuffled", [lambda: source(31).shuffle(seed=3), lambda: loader(31, shuffle=True, seed=3)]
)
def test_a_shuffle_with_a_seed_comes_first(split, shuffled):
    parts = [numbers(part) for part in split(3, shuffled, remainder="keep")]
    assert sorted(parts[0] + parts[1] + parts[2]) == list(range(31))
    assert parts == [numbers(shuffled())[rank::3] for rank in range(3)]


def test_seeds_that_differ_are_an_error(at, seeds_of_ranks):
    at(0, 2)
    split_data(source(8).shuffle(seed=3).batch(2).to_iter_dataset())
    at(1, 2)
    with pytest.raises(ValueError, match=r"image_dataset_from_directory.* \[4\] on rank 1"):
        split_data(source(8).shuffle(seed=4).batch(2).to_iter_dataset())


def test_a_repeated_dataset_is_another_order_each_time(split):
    parts = split(2, lambda: source(8).shuffle(seed=3).repeat(2))
    passes = [[numbers(part)[i : i + 4] for part in parts] for i in (0, 4)]
    for each in passes:
        assert sorted(each[0] + each[1]) == list(range(8))
    assert passes[0] != passes[1]


@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_an_iterator_goes_on_where_it_was(at, remainder):
    at(1, 3)
    part = split_data(source(13).to_iter_dataset(), remainder=remainder)
    iterator = iter(part)
    assert next(iterator) == 1
    state = iterator.get_state()
    assert numbers(iterator) == [4, 7, 10]
    again = iter(part)
    again.set_state(state)
    assert numbers(again) == [4, 7, 10]


def test_what_is_split_already(at):
    at(0, 2)
    with pytest.raises(ValueError, match="already split"):
        split_data(loader(8, grain.sharding.ShardOptions(0, 2)))


def test_grain_shuffles_by_itself(at):
    at(0, 2)
    for kind in (source, loader):
        with pytest.raises(ValueError, match="with Grain itself"):
            split_data(kind(8), shuffle="epoch")


def test_fewer_elements_than_ranks(at):
    at(0, 3)
    for kind in (source, loader):
        with pytest.raises(ValueError, match=r"Received: 2 \w+\(s\) for 3 rank\(s\)"):
            split_data(kind(2))
