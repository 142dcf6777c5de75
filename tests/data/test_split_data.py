"""What each rank gets from `split_data`, and what it refuses."""

import collections
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import easyddl
from easyddl.data import array_data
from easyddl.data.split_data import split_data

SIZES = [1, 2, 3, 4, 8]
SAMPLES = [8, 13, 24, 101]
Point = collections.namedtuple("Point", ["near", "far"])


def table(samples):
    """No two entries are alike, so that each row tells where it came from."""
    return np.arange(samples * 6, dtype="float32").reshape(samples, 3, 2)


def expected_rows(samples, rank, size, remainder="drop"):
    """The rows of one rank, by counting them off one by one."""
    kept = samples - samples % size if remainder == "drop" else samples
    return [row for row in range(kept) if row % size == rank]


def as_numpy(part):
    if hasattr(part, "toarray"):
        return part.toarray()
    if hasattr(part, "detach"):
        return part.detach().cpu().numpy()
    return np.asarray(part)


# Which samples a rank gets.


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("size", SIZES)
def test_each_rank_gets_every_kth_sample(split, size, samples, remainder):
    x = table(samples)
    parts = split(size, x, remainder=remainder)
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(part, x[expected_rows(samples, rank, size, remainder)])
        assert part.dtype == x.dtype


def test_the_same_samples_of_each_array(split):
    x, y = table(13), np.arange(13)
    for shuffle in (False, True):
        for part_x, part_y in split(3, x, y, shuffle=shuffle):
            np.testing.assert_array_equal(part_x, x[part_y])


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("size", SIZES)
def test_shuffle_permutes_once_and_then_splits(split, size, remainder):
    permutation = np.random.default_rng(7).permutation(101)
    options = {"shuffle": True, "seed": 7, "remainder": remainder}
    for rank, part in enumerate(split(size, np.arange(101), **options)):
        np.testing.assert_array_equal(part, permutation[expected_rows(101, rank, size, remainder)])


def test_the_seed_decides_the_permutation(split):
    def first(**options):
        return list(split(2, np.arange(50), shuffle=True, **options)[0])

    assert first() == first(seed=0) == first(seed=np.int64(0))
    assert first() != first(seed=1)
    assert first() != list(range(0, 50, 2))


def test_numpys_global_generator_is_left_alone(split):
    before = np.random.get_state()[1].copy()
    split(2, np.arange(10), shuffle=True)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


# The shape of what comes back.


def test_one_argument_gives_one_object_and_several_a_tuple(at):
    at(0, 2)
    assert isinstance(split_data(np.arange(4)), np.ndarray)
    result = split_data(np.arange(4), np.arange(4))
    assert type(result) is tuple
    assert len(result) == 2


def test_nested_structures_keep_their_form(at):
    at(1, 2)
    structure = {
        "pair": (np.arange(4), np.arange(4) * 10),
        "point": Point(near=np.arange(4) * 2, far={"deep": [5, 6, 7, 8]}),
        "weight": None,
    }
    part, labels = split_data(structure, list("abcd"))
    assert list(part) == ["pair", "point", "weight"]
    assert type(part["pair"]) is tuple
    np.testing.assert_array_equal(part["pair"], [[1, 3], [10, 30]])
    assert isinstance(part["point"], Point)
    np.testing.assert_array_equal(part["point"].near, [2, 6])
    assert part["point"].far == {"deep": [6, 8]}
    assert part["weight"] is None
    assert labels == ["b", "d"]
    np.testing.assert_array_equal(structure["pair"][0], np.arange(4))  # as it was


def test_none_stays_none(at):
    at(0, 2)
    x, y, weight = split_data(np.arange(4), np.arange(4), None)
    np.testing.assert_array_equal(x, [0, 2])
    np.testing.assert_array_equal(y, [0, 2])
    assert weight is None


def test_subclasses_of_dict_are_kept(at):
    at(0, 2)
    ordered = split_data(collections.OrderedDict(b=[1, 2], a=[3, 4]))
    assert ordered == collections.OrderedDict(b=[1], a=[3])
    assert isinstance(ordered, collections.OrderedDict)
    default = split_data(collections.defaultdict(list, a=[1, 2]))
    assert default == {"a": [1]}
    assert default.default_factory is list


def test_npz_file(at, tmp_path):
    np.savez(tmp_path / "data.npz", x=table(5), y=np.arange(5))
    at(1, 2)
    with np.load(tmp_path / "data.npz") as file:
        part = split_data(file)
    assert type(part) is dict
    np.testing.assert_array_equal(part["x"], table(5)[[1, 3]])
    np.testing.assert_array_equal(part["y"], [1, 3])


# Each kind of array.


def check_kind(split, leaf, values):
    """Compares the parts of `leaf` with rows of `values`, its NumPy form."""
    samples = len(values)
    permutation = np.random.default_rng(3).permutation(samples)
    for size in (1, 3):
        for rank, part in enumerate(split(size, leaf)):
            rows = expected_rows(samples, rank, size)
            np.testing.assert_array_equal(as_numpy(part), values[rows])
        for rank, part in enumerate(split(size, leaf, shuffle=True, seed=3)):
            rows = permutation[expected_rows(samples, rank, size)]
            np.testing.assert_array_equal(as_numpy(part), values[rows])
            kind = type(part)
    return kind


@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_parts_are_contiguous_copies(split, order):
    x = np.asarray(table(13), order=order)
    assert check_kind(split, x, table(13)) is np.ndarray
    for part in split(3, x) + split(3, x, shuffle=True):
        assert part.flags["C_CONTIGUOUS"]
        assert part.base is None
        assert not np.shares_memory(part, x)


def test_numpy_masked_array_keeps_its_mask(at):
    at(1, 2)
    part = split_data(np.ma.masked_array([1, 2, 3, 4], mask=[0, 1, 0, 0]))
    np.testing.assert_array_equal(part.mask, [True, False])


def test_world_of_one_copies_nothing(at):
    at(0, 1)
    x, y = table(5), [1, 2, 3, 4, 5]
    part_x, part_y = split_data(x, y)
    assert part_x is x
    assert part_y is y


def test_memory_map_stays_on_disk_unless_shuffled(split, tmp_path):
    np.save(tmp_path / "x.npy", table(13))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    check_kind(split, x, table(13))
    for part in split(3, x):
        assert isinstance(part, np.memmap)
        assert np.shares_memory(part, x)
    for part in split(3, x, shuffle=True):
        assert not np.shares_memory(part, x)


def test_list_is_a_list_of_samples(split):
    x = [f"sentence {i}" for i in range(13)]
    assert check_kind(split, x, np.array(x)) is list


def test_list_of_ragged_samples(at):
    at(1, 2)
    assert split_data([[1], [2, 3], [], [4]]) == [[2, 3], [4]]


def test_list_of_arrays_that_can_only_be_samples(at):
    at(1, 2)
    images = list(np.arange(12).reshape(4, 3))  # four samples of three values
    np.testing.assert_array_equal(split_data(images), [[3, 4, 5], [9, 10, 11]])


def test_range(split):
    check_kind(split, range(13), np.arange(13))


@pytest.mark.parametrize("index", [list("abcdefghijklm"), range(100, 113)])
def test_pandas_keeps_its_index(split, index):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(13), "b": np.arange(13) * 2}, index=index)
    values = frame.to_numpy()
    assert check_kind(split, frame, values) is pandas.DataFrame
    assert check_kind(split, frame["a"], values[:, 0]) is pandas.Series
    for rank, part in enumerate(split(3, frame)):
        rows = expected_rows(13, rank, 3)
        assert list(part.index) == [index[row] for row in rows]
        assert list(part.columns) == ["a", "b"]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil"])
def test_scipy_sparse_keeps_its_format(split, form):
    sparse = pytest.importorskip("scipy.sparse")
    values = np.arange(39).reshape(13, 3) % 4
    check_kind(split, sparse.csr_matrix(values).asformat(form), values)
    for part in split(3, sparse.csr_array(values).asformat(form)):
        assert part.format == form


@pytest.mark.parametrize("block", [1, 4, 5, 13, 4096])
def test_hdf5_dataset(split, tmp_path, monkeypatch, block):
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(array_data, "_BLOCK_ROWS", block)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = table(13)
        assert check_kind(split, file["x"], table(13)) is np.ndarray
        file["y"] = np.arange(13)
        for part in split(3, file, shuffle=True):  # a file is a mapping
            np.testing.assert_array_equal(part["x"], table(13)[part["y"]])


def test_tensorflow_tensors(split):
    tf = pytest.importorskip("tensorflow")
    tensor = tf.constant(table(13))
    assert issubclass(check_kind(split, tensor, table(13)), tf.Tensor)
    check_kind(split, tf.Variable(table(13)), table(13))


def test_tensorflow_ragged_tensor(at):
    tf = pytest.importorskip("tensorflow")
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    at(1, 2)
    assert split_data(ragged).to_list() == [[2, 3], [4]]
    part, rows = split_data(ragged, range(4), shuffle=True)
    assert part.to_list() == [[[1], [2, 3], [], [4]][row] for row in rows]


def test_torch_tensor(split):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(table(13))
    assert check_kind(split, x, table(13)) is torch.Tensor
    for part in split(3, x):
        assert part.is_contiguous()
        assert part.untyped_storage().nbytes() == part.nbytes


def test_jax_array(split):
    jax = pytest.importorskip("jax")
    assert issubclass(check_kind(split, jax.numpy.asarray(table(13)), table(13)), jax.Array)


def test_tensors_of_the_backend_in_use(split):
    check_kind(split, keras.ops.convert_to_tensor(table(13)), table(13))


def test_no_framework_is_imported():
    folder = pathlib.Path(easyddl.__file__).parent
    script = (
        "import sys, types\n"
        # Without the package's own __init__, which imports Keras.
        "sys.modules['easyddl'] = package = types.ModuleType('easyddl')\n"
        f"package.__path__ = [{str(folder)!r}]\n"
        "from easyddl.data import split_data\n"
        "from easyddl.runtime import world\n"
        "world.rank, world.size = lambda: 1, lambda: 2\n"
        "assert split_data.split_data([5, 6, 7, 8]) == [6, 8]\n"
        "assert list(split_data.split_data(iter([5, 6, 7, 8]))) == [6, 8]\n"
        "names = 'keras tensorflow torch grain jax pandas h5py scipy mpi4py'.split()\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# What is said about the samples left out.


def test_the_root_says_once_how_many_are_left_out(at, capsys):
    at(0, 8)
    split_data(np.arange(101), np.arange(101))
    said = capsys.readouterr().err
    assert said.count("easyddl:") == 1
    assert "left out 5 of 101 samples" in said
    assert "each of the 8 ranks gets 12" in said
    assert 'remainder="keep"' in said


@pytest.mark.parametrize(
    ("rank", "size", "samples", "remainder"),
    [(1, 8, 101, "drop"), (0, 8, 104, "drop"), (0, 8, 101, "keep"), (0, 1, 101, "drop")],
)
def test_nothing_is_said_otherwise(at, capsys, rank, size, samples, remainder):
    at(rank, size)
    split_data(np.arange(samples), remainder=remainder)
    assert capsys.readouterr().err == ""


# What is refused.


def refused(error, *arrays, **options):
    """The message of the error, which has to end with what was received."""
    with pytest.raises(error) as caught:
        split_data(*arrays, **options)
    message = str(caught.value)
    assert "Received: " in message.splitlines()[-1]
    return message


def test_compare_must_be_a_boolean():
    assert "`compare` must be a boolean" in refused(TypeError, [1, 2], compare="no")


@pytest.mark.parametrize(
    "arrays", [(), (None,), (None, None), ({},), ((),), ({"x": None, "y": (None,)},)]
)
def test_no_data(at, arrays):
    at(0, 2)
    assert "at least one array" in refused(ValueError, *arrays)


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_fewer_samples_than_ranks(at, samples):
    at(0, 3)
    message = refused(ValueError, np.zeros((samples, 2)))
    assert f"Received: {samples} sample(s) for 3 rank(s)" in message


def test_no_samples_in_a_world_of_one(at):
    at(0, 1)
    assert "0 sample(s) for 1 rank(s)" in refused(ValueError, [])


def test_unequal_lengths_name_each_array(at):
    at(0, 2)
    message = refused(ValueError, {"x": table(4), "p": Point(table(5), None)}, [1, 2, 3])
    assert "arrays[0]['x'] with 4" in message
    assert "arrays[0]['p'].near with 5" in message
    assert "arrays[1] with 3" in message


def test_unequal_lengths_are_refused_in_a_world_of_one(at):
    at(0, 1)
    assert "arrays[1] with 5" in refused(ValueError, table(4), table(5))


def test_unequal_lengths_explain_a_list_of_arrays(at):
    at(0, 2)
    message = refused(ValueError, [table(4), table(5)], np.arange(4))
    assert "A list is treated as a list of samples" in message
    assert "as a tuple" in message


@pytest.mark.parametrize("count", [1, 2, 3])
def test_list_that_looks_like_several_inputs(at, count):
    at(0, 2)
    message = refused(ValueError, [table(4)] * count, np.arange(4))
    assert "as a tuple" in message
    assert "np.stack" in message
    assert f"arrays[0], a list of {count} arrays with 4 rows each" in message


def test_list_of_tensors_that_looks_like_several_inputs(at):
    at(0, 2)
    tensor = keras.ops.convert_to_tensor(table(4))
    assert "as a tuple" in refused(ValueError, [tensor, tensor])


@pytest.mark.parametrize("scalar", [np.array(3.0), np.float32(3.0), np.array("text")])
def test_arrays_without_dimensions(at, scalar):
    at(0, 2)
    assert "arrays[1] of type numpy" in refused(ValueError, np.arange(4), scalar)


def test_tuple_of_values_is_not_a_list_of_samples(at):
    at(0, 2)
    message = refused(TypeError, np.arange(4), (0, 1, 1, 0))
    assert "A tuple is treated as several inputs" in message
    assert "arrays[1][0] of type builtins.int" in message


def test_symbolic_tensor(at):
    at(0, 2)
    assert "known" in refused(ValueError, keras.Input((3,)))


@pytest.mark.parametrize("remainder", ["pad", None, True, ["drop"]])
def test_unknown_remainder(at, remainder):
    at(0, 2)
    message = refused(ValueError, np.arange(4), remainder=remainder)
    assert '"drop" or "keep"' in message
    assert repr(remainder) in message


@pytest.mark.parametrize(
    ("name", "wrong", "error", "others"),
    [
        *(("seed", each, TypeError, {"shuffle": True}) for each in (None, 1.0, "1", True)),
        ("seed", -1, ValueError, {"shuffle": True}),
        *(("shuffle", each, TypeError, {}) for each in (None, 1, "yes")),
        *(
            ("batch_size", each, ValueError, {"shuffle": "epoch"})
            for each in (0, -1, 2.0, "8", True)
        ),
    ],
)
def test_wrong_options(at, name, wrong, error, others):
    at(0, 2)
    message = refused(error, np.arange(4), **{name: wrong}, **others)
    assert message.endswith(f"Received: {name}={wrong!r}")


@pytest.mark.parametrize("shuffle", [False, True])
def test_batch_size_without_batches(at, shuffle):
    at(0, 2)
    message = refused(ValueError, np.arange(4), shuffle=shuffle, batch_size=2)
    assert 'shuffle="epoch"' in message


def test_datasets_go_alone(at):
    tf = pytest.importorskip("tensorflow")
    at(0, 2)
    dataset = tf.data.Dataset.range(4)
    for both in ((dataset, dataset), (np.arange(4), dataset), ({"x": dataset},)):
        assert "must be the only argument" in refused(TypeError, *both)
    assert "arrays[1] of type" in refused(TypeError, np.arange(4), iter([1, 2]))


@pytest.mark.parametrize(
    "thing", [{1, 2}, object(), collections.deque([1, 2]), 3, "text", b"bytes"]
)
def test_other_types_name_what_is_supported(at, thing):
    at(0, 2)
    message = refused(TypeError, thing)
    assert "takes NumPy arrays" in message
    assert type(thing).__name__ in message


def test_tables_of_other_libraries(at):
    class Table:
        shape = (4, 2)

        def __getitem__(self, rows):
            return {}

        def __len__(self):
            return 4

    at(0, 2)
    assert "takes NumPy arrays" in refused(TypeError, Table())
