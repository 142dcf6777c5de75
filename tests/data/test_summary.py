"""Summaries of data, by which ranks find out whether theirs differ."""

import importlib.util
import pickle

import numpy as np
import pytest

from easyddl.data import split_calls, summary
from easyddl.data.split_data import split_data
from easyddl.runtime import world

random = np.random.default_rng(3)
FLOATS = random.standard_normal((300, 5)).astype("float32")
INTEGERS = random.integers(0, 10, 300)


def tensor_of(framework, array):
    if framework == "torch":
        return pytest.importorskip("torch").from_numpy(array)
    if framework == "jax":
        return pytest.importorskip("jax").numpy.asarray(array)
    return pytest.importorskip("tensorflow").constant(array)


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "torch"])
def test_tensors_have_the_summaries_of_arrays(framework):
    for array in (FLOATS, INTEGERS.astype("int32")):
        wanted = summary.of(array)
        assert wanted.has_contents
        assert summary.of(tensor_of(framework, array)) == wanted


@pytest.mark.parametrize(
    "data",
    [
        INTEGERS,
        INTEGERS.astype("uint8"),
        INTEGERS > 4,
        INTEGERS.astype("U3"),
        INTEGERS.astype("S3"),
        INTEGERS.astype("U3").astype(object),
        INTEGERS.tolist(),
        [f"{i}.png" for i in INTEGERS],
        np.datetime64("2020-01-01") + INTEGERS,
    ],
    ids=lambda data: str(getattr(data, "dtype", type(data[0]))),
)
def test_another_order_of_integers_and_texts_is_found(data):
    first = summary.of(data)
    assert first.digest is not None and not first.is_constant
    assert summary.difference([first, summary.of(data)]) is None
    assert summary.difference([first, summary.of(data[::-1])]) == "contents"
    assert summary.difference([first, summary.of(data[:-1])]) == "shapes"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_floats_have_a_tolerance(dtype):
    data = FLOATS.astype(dtype)
    data[0, 0] = np.nan
    first = summary.of(data)
    assert first.digest is None
    assert summary.difference([first, summary.of(data)]) is None
    assert summary.difference([first, summary.of(data * data.dtype.type(1 + 3e-4))]) is None
    assert summary.difference([first, summary.of(data + 1)]) == "floats"
    assert summary.difference([first, summary.of(data[::-1])]) == "floats"


@pytest.mark.parametrize("width", [32, 1024])
def test_rows_of_a_power_of_two(width):
    """Every column counts, also if the first one is the same everywhere."""
    data = random.standard_normal((2048, width)).astype("float32")
    data[:, : width // 2] = 0
    first = summary.of(data)
    assert summary.difference([first, summary.of(data[::-1])]) == "floats"
    assert not summary.are_equal([{"x": first}, {"x": summary.of(data[random.permutation(2048)])}])
    sparse_rows = np.eye(1024, 8192, dtype="float32")  # most sampled positions have a zero
    order = random.permutation(1024)
    assert summary.difference([summary.of(sparse_rows), summary.of(sparse_rows[order])]) == "floats"


def test_lists_of_floats():
    data = FLOATS[:, 0].tolist()
    assert summary.of(data).floats and summary.of(data).shape == (300,)


def test_tables():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"number": INTEGERS, "text": INTEGERS.astype("U3")})
    assert summary.of(table).shape == (300, 2)
    assert summary.difference([summary.of(table), summary.of(table[::-1])]) == "contents"
    series = pandas.Series(FLOATS[:, 0])
    assert summary.of(series).floats == summary.of(FLOATS[:, 0]).floats


def test_large_rows_are_sampled(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, shape=(50, 1000, 1000))
    array[:, 5, 5] = np.arange(50)
    first = summary.of(array)
    assert first.digest is not None
    assert len(pickle.dumps(first)) < 4096
    array[-1] = 7
    assert summary.difference([first, summary.of(array)]) == "contents"
    many = summary.of(random.standard_normal((10_000, 300)))
    assert len(pickle.dumps(many)) < 4096


def test_only_lengths_of_what_is_no_array(tmp_path):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    found = [summary.of(scipy_sparse.csr_matrix(FLOATS))]
    if importlib.util.find_spec("h5py"):
        import h5py

        with h5py.File(tmp_path / "x.h5", "w") as file:
            found.append(summary.of(file.create_dataset("x", data=FLOATS)))
    for each in found:
        assert each == summary.Summary((300, 5)) and not each.has_contents
    assert summary.of([FLOATS, "text", object()]) == summary.Summary((3,))
    assert summary.of(np.zeros((0, 4))) == summary.Summary((0, 4))
    for other in (None, 3, "text", iter([]), np.float32(1), np.array(1)):
        assert summary.of(other) is None


def test_equal_data_must_have_contents_that_differ_by_row():
    x = {"a": summary.of(FLOATS)}
    assert summary.are_equal([x, dict(x)])
    assert not summary.are_equal([x, {"a": summary.of(FLOATS + 1)}])
    with_nan = np.where(FLOATS > 2, np.nan, FLOATS)
    rounded = [{"a": summary.of(with_nan * factor)} for factor in (1, np.float32(1 + 1e-6))]
    assert summary.are_equal(rounded)
    assert not summary.are_equal([x, rounded[0]])
    assert not summary.are_equal([x, {}]) and not summary.are_equal([{}, {}])
    constant = {"a": summary.of(np.ones((5, 2)))}
    assert not summary.are_equal([constant, constant])
    unknown = {**x, "b": summary.Summary((300,))}
    assert not summary.are_equal([unknown, unknown])


def test_what_split_data_returned_is_known(monkeypatch):
    monkeypatch.setattr(world, "rank", lambda: 1)
    monkeypatch.setattr(world, "size", lambda: 2)
    split_calls.take([])
    x, y = split_data(FLOATS, INTEGERS)
    assert split_calls.is_result(x) and split_calls.is_result(y[10:])
    assert not split_calls.is_result(x * 2) and not split_calls.is_result(FLOATS)
    assert not split_calls.is_result(None)
    first = split_data(FLOATS)
    (key, used), ((place, number), call) = split_calls.take([first]).items()
    assert key == (None, -1) and list(used.summaries) == ["arrays[0]"]
    assert place == call.place and place.startswith("test_summary.py, line ") and number == -1
    assert call.options == "shuffle=False, seed=0, remainder='drop'"
    assert call.summaries["arrays[1]"] == summary.of(INTEGERS)
    assert not split_calls.take([])


def test_calls_without_end_are_not_kept(monkeypatch):
    monkeypatch.setattr(world, "rank", lambda: 0)
    monkeypatch.setattr(world, "size", lambda: 2)
    for _ in range(100):
        split_data(INTEGERS)
    assert [number for _, number in split_calls.take([])] == list(range(-1, -65, -1))


class Rows:
    """Rows that cannot be read, or whose reading is interrupted."""

    shape = (4, 2)

    def __init__(self, error):
        self._error = error

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        raise self._error


def test_rows_that_cannot_be_read_have_a_length():
    assert summary.of(Rows(NotImplementedError("no such rows"))) == summary.Summary((4, 2))


def test_an_error_of_a_signal_handler_ends_a_summary():
    with pytest.raises(TimeoutError):
        summary.of(Rows(TimeoutError("too late")))
