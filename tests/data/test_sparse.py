"""Rows of sparse tensors, and texts, in `split_data`."""

import keras
import numpy as np
import pytest

from easyddl.data import sparse
from easyddl.data.split_data import split_data

SAMPLES, SIZES = 13, [1, 2, 3]


def dense():
    values = np.random.default_rng(0).integers(1, 100, (SAMPLES, 5)).astype("float32")
    values[np.random.default_rng(1).random(values.shape) < 0.6] = 0
    values[4] = 0  # a row without elements
    return values


def scipy_csr():
    return pytest.importorskip("scipy.sparse").csr_matrix(dense())


def scipy_coo():
    return pytest.importorskip("scipy.sparse").coo_matrix(dense())


def scipy_dok():  # it is a mapping, too
    return pytest.importorskip("scipy.sparse").dok_matrix(dense())


def tensorflow_tensor():
    tf = pytest.importorskip("tensorflow")

    return tf.sparse.from_dense(dense())


def jax_bcoo():
    return pytest.importorskip("jax.experimental.sparse").BCOO.fromdense(dense())


def torch_coo():
    torch = pytest.importorskip("torch")
    return torch.as_tensor(dense()).to_sparse_coo()


def torch_csr():
    torch = pytest.importorskip("torch")
    return torch.as_tensor(dense()).to_sparse_csr()


KINDS = [scipy_csr, scipy_coo, scipy_dok, tensorflow_tensor, jax_bcoo, torch_coo, torch_csr]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_gets_its_rows(split, kind, size, shuffle):
    whole = kind()
    expected = split(size, dense(), shuffle=shuffle, remainder="keep")
    for part, rows in zip(
        split(size, whole, shuffle=shuffle, remainder="keep"), expected, strict=True
    ):
        assert type(part) is type(whole) and tuple(part.shape) == rows.shape
        assert getattr(part, "layout", None) == getattr(whole, "layout", None)
        np.testing.assert_array_equal(sparse.to_dense(part), rows)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", KINDS)
def test_epochs_of_rows_are_dense(split, kind):
    data = split(2, kind(), shuffle="epoch", batch_size=3)[1]
    same = split(2, dense(), shuffle="epoch", batch_size=3)[1]
    for index in range(len(same)):
        np.testing.assert_array_equal(data[index][0], same[index][0])


@pytest.mark.parametrize("size", SIZES)
def test_other_dimensions_stay(split, size):
    tf = pytest.importorskip("tensorflow")

    cube = np.arange(SAMPLES * 6, dtype="float32").reshape(SAMPLES, 3, 2) % 4
    parts = split(size, tf.sparse.from_dense(cube))
    for part, rows in zip(parts, split(size, cube), strict=True):
        np.testing.assert_array_equal(sparse.to_dense(part), rows)


@pytest.mark.filterwarnings("ignore:.*is in (beta|prototype)")
@pytest.mark.parametrize("kind", ["csc", "bsr", "nested"])
def test_other_layouts_of_torch_are_an_error(at, kind):
    torch = pytest.importorskip("torch")
    at(0, 2)
    made = {
        "csc": lambda: torch.ones(4, 4).to_sparse_csc(),
        "bsr": lambda: torch.ones(4, 4).to_sparse_bsr((2, 2)),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
    }[kind]()
    for shuffle in (False, True, "epoch"):
        with pytest.raises((RuntimeError, NotImplementedError)):
            batches = split_data(made, shuffle=shuffle)
            batches[0]


@pytest.mark.parametrize("kind", ["array", "table"])
def test_epochs_of_objects_that_are_numbers(at, kind):
    pandas = pytest.importorskip("pandas")
    at(0, 1)
    columns = {"a": [0.5, 1.5, 2.5], "b": [1, 2, 3], "c": [True, False, True]}
    table = pandas.DataFrame(columns)
    (batch,) = split_data(
        table if kind == "table" else table.to_numpy(object), [0, 1, 2], shuffle="epoch"
    )
    assert batch[0].dtype == keras.backend.floatx()
    np.testing.assert_array_equal(batch[0], np.array(list(columns.values())).T[batch[1]])


def test_epochs_of_objects_with_missing_values(at):
    at(0, 1)
    table = np.array([[0.5, "a"], [1.5, None]], object)
    for missing in (table, table[:, 1]):
        batches = split_data(missing, [0, 1], shuffle="epoch")
        with pytest.raises((TypeError, ValueError)):
            batches[0]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="texts are TensorFlow's")
def test_epochs_of_lists_of_texts(at):
    at(0, 1)
    for texts in ([["a", "b"], ["c", "d"]], [[b"a\0", b"b"], [b"c", b"d\0"]]):
        (batch,) = split_data(texts, [0, 1], shuffle="epoch")
        whole = [[x if isinstance(x, bytes) else x.encode() for x in each] for each in texts]
        assert batch[0].numpy().tolist() == [whole[i] for i in batch[1]]


def test_epochs_of_ragged_rows(split):
    tf = pytest.importorskip("tensorflow")

    rows = [list(range(i % 4)) for i in range(SAMPLES)]
    parts = split(2, tf.ragged.constant(rows), np.arange(SAMPLES), shuffle="epoch", batch_size=4)
    for part in parts:
        for x, y in (part[i] for i in range(len(part))):
            assert isinstance(x, tf.RaggedTensor) and x.to_list() == [rows[i] for i in y]
    if keras.backend.backend() == "tensorflow":
        lengths = keras.layers.Lambda(lambda x: tf.cast(x.row_lengths(), "float32")[:, None])
        model = keras.Sequential([lengths, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        assert len(model.fit(parts[0], epochs=2, verbose=0).history["loss"]) == 2


@pytest.mark.parametrize("kind", ["list", "numpy", "object", "tensor"])
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="texts are TensorFlow's")
def test_texts_in_another_order_in_each_epoch(kind):
    tf = pytest.importorskip("tensorflow")

    words = ["one", "two", "three", "four"] * 3
    made = {
        "list": list,
        "numpy": np.array,
        "object": lambda each: np.array(each, object),
        "tensor": tf.constant,
    }[kind](words)
    data = split_data(made, np.arange(12.0), shuffle="epoch", batch_size=4)
    seen = [(text.decode(), y) for x, ys in (data[i] for i in range(len(data)))
            for text, y in zip(x.numpy().tolist(), ys, strict=True)]  # fmt: skip
    assert sorted(seen) == sorted(zip(words, np.arange(12.0), strict=True))
    lookup = keras.layers.StringLookup(vocabulary=["one", "two", "three", "four"])
    inputs = keras.Input((), dtype="string")
    number = keras.layers.Lambda(lambda x: tf.cast(x, "float32")[:, None])(lookup(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(number))
    model.compile("sgd", "mse")
    assert len(model.fit(data, epochs=2, verbose=0).history["loss"]) == 2
