"""What each rank gets of a `tf.data.Dataset`."""

import numpy as np
import pytest

from easyddl import split_data
from easyddl.data import dataset_files, global_random, lookup_tables

tf = pytest.importorskip("tensorflow")
SIZES = [1, 2, 3]


def numbers(dataset):
    return [int(element) for element in dataset]


def everything(element):
    return True


def of_unknown_length(count):
    return tf.data.Dataset.range(count).filter(everything)


@pytest.fixture(autouse=True)
def no_global_seed():
    """Other tests may have set one, and a test here may."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


# Which elements a rank gets.


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("count", [12, 13, 14])
@pytest.mark.parametrize("size", SIZES)
def test_known_cardinality(split, size, count, remainder):
    kept = count - count % size if remainder == "drop" else count
    for rank, part in enumerate(split(size, tf.data.Dataset.range(count), remainder=remainder)):
        want = list(range(rank, kept, size))
        assert numbers(part) == want
        assert int(part.cardinality()) == len(want)


@pytest.mark.parametrize("size", SIZES)
def test_unknown_cardinality_stays_unknown_and_loses_nothing(split, size):
    for rank, part in enumerate(split(size, of_unknown_length(13))):
        assert numbers(part) == list(range(rank, 13, size))
        assert int(part.cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize("size", SIZES)
def test_infinite_stays_infinite(split, size):
    for rank, part in enumerate(split(size, tf.data.Dataset.range(4).repeat())):
        assert int(part.cardinality()) == tf.data.INFINITE_CARDINALITY
        want = [i % 4 for i in range(rank, 12 * size, size)]
        assert numbers(part.take(12)) == want


def test_batches_are_split_whole(split):
    batches = tf.data.Dataset.range(12).batch(2)
    parts = [[batch.numpy().tolist() for batch in part] for part in split(3, batches)]
    assert parts == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]
    # What the ranks take in a step is what one process takes with batches three times as large.
    assert np.concatenate([part[1] for part in parts]).tolist() == list(range(6, 12))


def test_structures_stay(at):
    at(1, 2)
    dataset = tf.data.Dataset.from_tensor_slices(({"a": np.arange(4)}, np.arange(4) * 10))
    part = split_data(dataset)
    assert part.element_spec == dataset.element_spec
    assert [(int(x["a"]), int(y)) for x, y in part] == [(1, 10), (3, 30)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_attributes_of_a_dataset_stay(split, shuffle):
    dataset = tf.data.Dataset.range(4)
    dataset.class_names = ["cat", "dog"]  # as image_dataset_from_directory sets it
    for part in split(2, dataset, shuffle=shuffle):
        assert part.class_names == ["cat", "dog"]


def test_a_world_of_one_gets_it_as_it_is(at):
    at(0, 1)
    dataset = tf.data.Dataset.range(5).shuffle(5)
    assert split_data(dataset) is dataset


def test_the_root_says_what_is_left_out(at, capsys):
    at(0, 3)
    split_data(tf.data.Dataset.range(14))
    assert "left out 2 of 14 elements" in capsys.readouterr().err
    split_data(of_unknown_length(14))
    split_data(tf.data.Dataset.range(14), remainder="keep")
    assert capsys.readouterr().err == ""


def test_fewer_elements_than_ranks(at):
    at(0, 3)
    with pytest.raises(ValueError, match=r"Received: 2 element\(s\) for 3 rank\(s\)"):
        split_data(tf.data.Dataset.range(2))


# Datasets that were shuffled before.


def test_a_shuffle_with_a_seed_comes_first(split):
    def shuffled():
        return tf.data.Dataset.range(30).shuffle(30, seed=4).skip(0)

    parts = split(3, shuffled)
    passes = [[numbers(part) for part in parts] for _ in range(2)]
    for each in passes:
        assert sorted(np.concatenate(each)) == list(range(30))
    assert passes[0] != passes[1]  # reshuffled, on all ranks alike
    assert passes[0][0] != sorted(passes[0][0])


@pytest.mark.parametrize(
    "shuffled",
    [
        lambda data: data.shuffle(8),
        lambda data: data.shuffle(8, reshuffle_each_iteration=False).batch(2),
        lambda data: data.batch(2).shuffle(4).map(lambda x: x).prefetch(1).repeat(),
        lambda data: tf.data.Dataset.zip((data, data.shuffle(8))),
        lambda data: data.interleave(lambda x: tf.data.Dataset.range(x).shuffle(8)),
    ],
)
def test_a_shuffle_without_a_seed_is_refused(at, shuffled):
    at(0, 2)
    with pytest.raises(ValueError, match=r"would overlap.*pass the same `seed`"):
        split_data(shuffled(tf.data.Dataset.range(8)))


def by_chance(*numbers):
    return tf.random.uniform(()) < 0.5


@pytest.mark.parametrize(
    "chosen",
    [
        lambda data: tf.data.Dataset.sample_from_datasets([data, data]),
        lambda data: data.rejection_resample(lambda x: tf.cast(x % 2, tf.int32), [0.9, 0.1]),
        lambda data: data.filter(by_chance).batch(2),
        lambda data: data.filter(tf.function(lambda x: tf.cond(x > 2, by_chance, by_chance))),
    ],
)
def test_a_random_choice_without_a_seed_is_refused(at, chosen):
    at(0, 2)
    with pytest.raises(ValueError, match=r"would overlap.*pass the same `seed`.*rejection_res"):
        split_data(chosen(tf.data.Dataset.range(8)))


def test_a_random_choice_with_a_seed_is_one_for_all_ranks(split):
    def chosen():
        tf.random.set_seed(3)
        return tf.data.Dataset.range(100).filter(by_chance)

    parts = [number for part in split(2, chosen) for number in numbers(part)]
    assert 20 < len(parts) == len(set(parts)) < 80


def test_random_numbers_in_a_map_are_not_refused(at):
    at(0, 2)
    split_data(tf.data.Dataset.range(8).map(lambda x: (x, tf.random.uniform(()))))
    split_data(tf.data.Dataset.range(8).filter(everything).map(lambda x: (x, by_chance())))


def test_a_global_seed_is_a_seed(at):
    tf.random.set_seed(3)
    at(0, 2)
    split_data(tf.data.Dataset.range(8).shuffle(8))


def test_a_global_seed_that_differs_is_an_error(at, seeds_of_ranks):
    tf.random.set_seed(0)
    at(0, 2)
    split_data(tf.data.Dataset.range(8).shuffle(8, seed=5))
    tf.random.set_seed(1)
    at(1, 2)
    words = "overlap. Pass the same `seed` on all ranks to `image_dataset_from_directory`"
    with pytest.raises(ValueError, match=rf"{words}.*on rank 0; .* on rank 1"):
        split_data(tf.data.Dataset.range(8).shuffle(8, seed=5))


@pytest.mark.parametrize(
    "loose",
    [
        lambda data: data.map(lambda x: x, num_parallel_calls=2, deterministic=False).batch(2),
        lambda data: data.batch(2, num_parallel_calls=2, deterministic=False).prefetch(1),
    ],
)
def test_an_order_that_is_not_deterministic_is_refused(at, loose):
    at(0, 2)
    with pytest.raises(ValueError, match="deterministic=False"):
        split_data(loose(tf.data.Dataset.range(8)))


def test_options_that_are_not_deterministic_are_refused(at):
    options = tf.data.Options()
    options.deterministic = False
    at(0, 2)
    with pytest.raises(ValueError, match="deterministic=False"):
        split_data(tf.data.Dataset.range(8).with_options(options))


# Shuffled by split_data.


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("shuffle", [True, "epoch"])
def test_shuffle_gives_each_element_to_one_rank(split, shuffle, remainder):
    seeds = iter(range(100, 103))

    def differently_seeded():
        tf.random.set_seed(next(seeds))
        return tf.data.Dataset.range(31)

    parts = split(3, differently_seeded, shuffle=shuffle, seed=0, remainder=remainder)
    kept = 30 if remainder == "drop" else 31
    orders = []
    for _ in range(3):
        each = [numbers(part) for part in parts]
        assert [len(part) for part in each] == [int(part.cardinality()) for part in parts]
        assert max(map(len, each)) - min(map(len, each)) == kept % 3
        together = np.concatenate(each).tolist()
        assert len(set(together)) == len(together) == kept
        orders.append(each)
    assert orders[0][0] != sorted(orders[0][0])
    assert (orders[0] == orders[1]) == (shuffle is True)


def test_the_order_follows_from_seed_and_epoch(at):
    at(1, 2)

    def order(seed, epoch):
        part = split_data(tf.data.Dataset.range(40), shuffle="epoch", seed=seed)
        part.set_epoch(epoch)
        return numbers(part)

    orders = {(seed, epoch): order(seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len({tuple(each) for each in orders.values()}) == 6
    assert orders == {key: order(*key) for key in orders}
    part = split_data(tf.data.Dataset.range(40), shuffle="epoch")
    assert [numbers(part) for _ in range(3)] == [orders[0, epoch] for epoch in range(3)]


@pytest.mark.parametrize("shuffle", [True, "epoch"])
def test_what_has_no_known_end_cannot_be_shuffled(at, shuffle):
    at(0, 2)
    for dataset, which in (
        (of_unknown_length(8), "unknown"),
        (tf.data.Dataset.range(8).repeat(), "infinite"),
    ):
        with pytest.raises(ValueError, match=f"finite cardinality only.*{which}.*shuffle="):
            split_data(dataset, shuffle=shuffle)


# What ranks compare of a dataset's graph.


@pytest.mark.parametrize(
    ("read", "nothing"),
    [
        (dataset_files.files_of, []),
        (lookup_tables.checksums_of, []),
        (global_random.may_differ, False),
    ],
)
def test_a_tensorflow_with_other_private_names_has_nothing_to_compare(read, nothing, monkeypatch):
    from easyddl.data import tf_graph

    def lacking(dataset):
        raise AttributeError("_inputs")

    table = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64))
    words = tf.data.Dataset.from_tensor_slices(["a", "b", "b", "a"]).shard(2, 0).cache("words")
    numbers = words.map(tf.lookup.StaticHashTable(table, -1).lookup)
    assert read(numbers)
    monkeypatch.setattr(tf_graph, "direct_inputs_of", lacking)
    assert read(numbers) == nothing
    assert read(np.zeros(3)) == nothing


@pytest.mark.parametrize(
    ("keys", "values", "is_read"),
    [([3, 4], [1, 2], True), ([3, 4], ["a", "b"], True), (["a", "b"], [0.5, 0.25], False)],
)
def test_tables_of_other_types(keys, values, is_read):
    content = tf.lookup.KeyValueTensorInitializer(*map(np.asarray, (keys, values)))
    table = tf.lookup.StaticHashTable(content, values[0])
    data = tf.data.Dataset.from_tensor_slices(np.asarray(keys)).map(table.lookup)
    assert [size for size, _ in lookup_tables.checksums_of(data)] == [2] * is_read
