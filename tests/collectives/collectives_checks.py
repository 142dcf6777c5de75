"""The collectives' results, on every rank, against NumPy's."""

import time

import keras
import numpy as np
from ranks import (
    FLOATS,
    INTEGERS,
    assert_equal,
    assert_same_on_all,
    bits,
    comm,
    inputs,
    noise,
    numpy_dtype,
    ops_of,
    reduced,
    values,
)
from steps import BACKEND, backend_variable

import easyddl as ddl

DTYPES = (*FLOATS, *INTEGERS, "bool")


def check_allreduce_of_every_dtype_and_op():
    for dtype in DTYPES:
        for op in ops_of(dtype):
            for shape in (17, 9973):
                everyones = inputs(shape, dtype, op)
                result = ddl.allreduce(everyones[ddl.rank()], op)
                assert_equal(result, reduced(everyones, op))
                assert_same_on_all(result)


def check_allreduce_of_odd_sizes_in_several_chunks():
    scale = 8 if ddl.num_nodes() > 1 else 1
    for dtype, count in (("int8", 600_011), ("bfloat16", 300_007), ("float64", 100_003)):
        everyones = inputs(count * scale, dtype)
        result = ddl.allreduce(everyones[ddl.rank()], "sum")
        assert_equal(result, reduced(everyones, "sum"))


def check_allreduce_of_every_shape():
    for shape in ((), (1,), (7, 5), (1, 1, 1, 5), (0, 3), (3, 0, 2), (31, 100, 7)):
        for dtype in ("float32", "bfloat16"):
            everyones = inputs(shape, dtype)
            result = ddl.allreduce(everyones[ddl.rank()], "mean")
            assert_equal(result, reduced(everyones, "mean"))


def check_mean_is_the_default_of_allreduce():
    everyones = inputs(11, "float64")
    assert_equal(ddl.allreduce(everyones[ddl.rank()]), reduced(everyones, "mean"))


def odd_layouts(array):
    """The same elements, differently laid in memory."""
    read_only = array.copy()
    read_only.flags.writeable = False
    spread = np.zeros((2 * array.shape[0], array.shape[1]), array.dtype)
    spread[::2] = array
    raw = np.frombuffer(b"?" + array.tobytes(), np.uint8)[1:]
    unaligned = raw.view(array.dtype).reshape(array.shape)
    assert not unaligned.flags.aligned and not unaligned.flags.writeable
    return {
        "as it is": array,
        "read-only": read_only,
        "every other row": spread[::2],
        "Fortran order": np.asfortranarray(array),
        "transposed": array.T.copy().T,
        "backwards": array[::-1, ::-1].copy()[::-1, ::-1],
        "unaligned": unaligned,
    }


def check_inputs_of_any_memory_layout():
    shape = (4 * ddl.size(), 251)
    for dtype in ("float32", "int64"):
        everyones = inputs(shape, dtype)
        total = reduced(everyones, "sum")
        rows = shape[0] // ddl.size()
        mine = slice(ddl.rank() * rows, (ddl.rank() + 1) * rows)
        for layout, array in odd_layouts(everyones[ddl.rank()]).items():
            for name, call, expected in (
                ("allreduce", lambda x: ddl.allreduce(x, "sum"), total),
                ("broadcast", ddl.broadcast, everyones[0]),
                ("allgather", ddl.allgather, np.concatenate(everyones)),
                ("reduce_scatter", ddl.reduce_scatter, total[mine]),
                ("alltoall", ddl.alltoall, np.concatenate([each[mine] for each in everyones])),
            ):
                before = bits(array)
                try:
                    result = call(array)
                    assert_equal(result, expected)
                    assert bits(array) == before, "the input was changed"
                    assert not np.shares_memory(result, array), "the result is not its own"
                    assert result.flags.writeable
                except AssertionError as error:
                    raise AssertionError(f"{name} of an array {layout}: {error}") from error


def check_one_element_seen_many_times():
    seen = np.broadcast_to(np.float32(ddl.rank() + 1), (3, 5))
    total = ddl.size() * (ddl.size() + 1) / 2
    assert_equal(ddl.allreduce(seen, "sum"), np.full((3, 5), total, np.float32))


def check_bytes_in_the_other_order():
    # As they come from network-order files, such as MNIST's own.
    everyones = inputs(300, "float32")
    foreign = everyones[ddl.rank()].astype(everyones[0].dtype.newbyteorder())
    total = reduced(everyones, "sum")
    np.testing.assert_array_equal(ddl.allreduce(foreign, "sum"), total)
    np.testing.assert_array_equal(ddl.allgather(foreign), np.concatenate(everyones))
    # A rank's byte order is its own affair: the values are what is exchanged.
    mixed = foreign if ddl.rank() == 0 else everyones[ddl.rank()]
    np.testing.assert_array_equal(ddl.broadcast(mixed), everyones[0])
    np.testing.assert_array_equal(ddl.allreduce(mixed, "sum"), total)


def check_results_are_of_the_arguments_type():
    rank, size = ddl.rank(), ddl.size()
    total = size * (size + 1) // 2
    for x in (rank + 1, float(rank + 1), np.float32(rank + 1), np.int16(rank + 1)):
        result = ddl.allreduce(x, "sum")
        assert type(result) is type(x) and result == total, (x, result)
        result = ddl.broadcast(x, root_rank=size - 1)
        assert type(result) is type(x) and result == size, (x, result)
    assert ddl.allreduce(rank == 0, "max") is True
    assert ddl.allreduce(rank == 0, "min") is (size == 1)
    assert isinstance(ddl.allreduce(np.array(1.0)), np.ndarray)
    assert ddl.allreduce(np.array(1.0)).shape == ()


def check_tensors():
    rank, size = ddl.rank(), ddl.size()
    for dtype in (*FLOATS, *INTEGERS):
        everyones = inputs((size, 3), dtype)
        x = keras.ops.convert_to_tensor(everyones[rank], dtype=dtype)
        total = reduced(everyones, "sum")
        for result, expected in (
            (ddl.allreduce(x, "sum"), total),
            (ddl.broadcast(x, size - 1), everyones[size - 1]),
            (ddl.allgather(x), np.concatenate(everyones)),
            (ddl.reduce_scatter(x), total[rank : rank + 1]),
            (ddl.alltoall(x), np.stack([each[rank] for each in everyones])),
        ):
            assert type(result) is type(x) and result.dtype == x.dtype
            assert_equal(keras.ops.convert_to_numpy(result), expected)
        assert_equal(keras.ops.convert_to_numpy(x), everyones[rank])
    x = keras.ops.convert_to_tensor(float(rank))
    scalar = ddl.allreduce(x, "max")
    assert type(scalar) is type(x) and scalar.shape == () and float(scalar) == size - 1


def check_variables_and_sparse_gradients():
    everyones = inputs((2, 3), "float32")
    total = reduced(everyones, "sum")
    mine = everyones[ddl.rank()]
    variables = [backend_variable(mine.copy()), keras.Variable(mine)]
    for variable in variables:
        result = ddl.allreduce(variable, "sum")
        assert isinstance(result, type(keras.ops.zeros(1)))
        assert_equal(keras.ops.convert_to_numpy(result), total)
        assert_equal(keras.ops.convert_to_numpy(variable), mine)
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    rows = tf.IndexedSlices(tf.constant(mine), tf.constant([0, 2]), dense_shape=tf.constant([4, 3]))
    dense = np.zeros((4, 3), np.float32)
    dense[[0, 2]] = total
    assert_equal(ddl.allreduce(rows, "sum").numpy(), dense)


def check_halves_are_summed_in_float32():
    size = ddl.size()
    for dtype, big in (("float16", 2048), ("bfloat16", 256)):
        # big + 1 is rounded back to big at every step of a sum in 16 bits.
        mine = np.full(4099, big if ddl.rank() == 0 else 1, numpy_dtype(dtype))
        exact = np.full(4099, big + size - 1, np.float32).astype(numpy_dtype(dtype))
        assert_equal(ddl.allreduce(mine, "sum"), exact)
    # Overflows on the way, but not at the end.
    huge = np.full(5, 60000, np.float16)
    assert_equal(ddl.allreduce(huge, "mean"), huge)
    if size > 2:
        mine = np.full(5, {0: 6e4, 1: 6e4, 2: -6e4}.get(ddl.rank(), 0), np.float16)
        assert_equal(ddl.allreduce(mine, "sum"), huge)
        powers = {0: 1024.0, 1: 1024.0, 2: 1 / 2048}
        mine = np.full(5, powers.get(ddl.rank(), 1), np.float16)
        assert_equal(ddl.allreduce(mine, "prod"), np.full(5, 512, np.float16))


def check_integers_beyond_doubles():
    start = 2**53 + 1
    mine = np.array([start + ddl.rank(), 1 if ddl.rank() else start])
    total = sum(start + rank for rank in range(ddl.size()))
    expected = np.array([total, start + ddl.size() - 1])
    assert_equal(ddl.allreduce(mine, "sum"), expected)
    assert ddl.allreduce(start + ddl.rank(), "max") == start + ddl.size() - 1
    assert ddl.broadcast(start) == start


def check_bits_are_the_same_on_all_ranks_and_in_each_call():
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-14), ("float16", 1e-3)):
        for count in (1009, 90_001):
            everyones = [noise(rank, count, dtype) for rank in range(ddl.size())]
            wide = np.stack(everyones).astype(np.float64)
            for op, exact in (("sum", wide.sum(0)), ("mean", wide.mean(0))):
                results = [ddl.allreduce(everyones[ddl.rank()], op) for _ in range(3)]
                assert len({result.tobytes() for result in results}) == 1
                assert_same_on_all(results[0])
                error = np.abs(results[0].astype(np.float64) - exact)
                assert (error <= tolerance * np.abs(wide).sum(0)).all(), (dtype, op, error.max())


def check_broadcast_from_every_root():
    dtypes = (*DTYPES, "uint16", "uint32", "uint64", "complex64", "complex128")
    for root in range(ddl.size()):
        for dtype in dtypes:
            everyones = inputs((3, 5), dtype)
            before = bits(everyones[ddl.rank()])
            result = ddl.broadcast(everyones[ddl.rank()], root_rank=root)
            assert_equal(result, everyones[root])
            assert bits(everyones[ddl.rank()]) == before
            assert not np.shares_memory(result, everyones[ddl.rank()])
        for shape in ((), 0, (0, 3), 1, 2049, 65537, 1_200_007):
            mine = values(ddl.rank(), shape, "float32")
            assert_equal(ddl.broadcast(mine, root), values(root, shape, "float32"))


def check_root_is_an_integer_of_any_kind():
    last = ddl.size() - 1
    root = np.int64(last) if ddl.rank() % 2 else last
    assert_equal(ddl.broadcast(values(ddl.rank(), 4, "int32"), root), values(last, 4, "int32"))


def check_broadcast_keeps_every_bit():
    nan = np.array([0x7FF8DEADBEEF0001, 1 << 63], np.uint64).view(np.float64)
    mine = nan if ddl.rank() == 0 else np.zeros(2)
    assert bits(ddl.broadcast(mine)) == bits(nan)


def check_allgather_of_different_lengths():
    size = ddl.size()
    lengths = {
        "different": [3 * rank + 1 for rank in range(size)],
        "none on the root": [5 * rank for rank in range(size)],
        "none on the last": [2 * (size - 1 - rank) for rank in range(size)],
        "none anywhere": [0] * size,
        "equal": [4] * size,
        "large": [30_011 * (rank + 1) for rank in range(size)],
    }
    for rows in lengths.values():
        for dtype in ("float32", "bfloat16", "bool", "complex128"):
            for rest in ((), (3,), (2, 0), (1, 2)):
                everyones = [values(rank, (rows[rank], *rest), dtype) for rank in range(size)]
                result = ddl.allgather(everyones[ddl.rank()])
                assert_equal(result, np.concatenate(everyones))


def check_reduce_scatter_of_every_dtype_and_op():
    rank, size = ddl.rank(), ddl.size()
    for dtype in DTYPES:
        for op in ops_of(dtype):
            for rows, rest in ((1, ()), (3, (5,)), (2, (2, 1009))):
                everyones = inputs((rows * size, *rest), dtype, op)
                result = ddl.reduce_scatter(everyones[rank], op)
                mine = slice(rank * rows, (rank + 1) * rows)
                assert_equal(result, reduced(everyones, op)[mine])
    for shape in ((0,), (0, 3), (2 * size, 0)):
        result = ddl.reduce_scatter(np.zeros(shape, np.float32))
        assert result.shape == (shape[0] // size, *shape[1:])


def check_sum_is_the_default_of_reduce_scatter():
    everyones = inputs(ddl.size(), "int32")
    expected = reduced(everyones, "sum")[ddl.rank() : ddl.rank() + 1]
    assert_equal(ddl.reduce_scatter(everyones[ddl.rank()]), expected)


def check_alltoall_in_equal_parts():
    rank, size = ddl.rank(), ddl.size()
    for dtype in ("float32", "bfloat16", "uint8"):
        for rows, rest in ((1, ()), (2, (3,)), (4001, (2,)), (0, (3,))):
            everyones = inputs((rows * size, *rest), dtype)
            mine = slice(rank * rows, (rank + 1) * rows)
            expected = np.concatenate([each[mine] for each in everyones])
            assert_equal(ddl.alltoall(everyones[rank]), expected)


def check_alltoall_in_given_parts():
    rank, size = ddl.rank(), ddl.size()
    random = np.random.default_rng(5)
    diagonal = np.diag(np.arange(size))
    to_root_only = np.zeros((size, size), int)
    to_root_only[:, 0] = 7
    for splits in (
        random.integers(0, 5, (size, size)),
        random.integers(0, 9001, (size, size)),
        diagonal,
        to_root_only,
        to_root_only.T,
        np.zeros((size, size), int),
    ):
        for rest in ((), (2,), (0,)):
            everyones = [values(r, (splits[r].sum(), *rest), "float32") for r in range(size)]
            ends = splits.cumsum(axis=1)
            spans = zip(everyones, ends[:, rank], splits[:, rank], strict=True)
            expected = np.concatenate([each[end - rows : end] for each, end, rows in spans])
            mine = splits[rank]
            for given in (mine, mine.tolist(), tuple(mine.tolist()), mine.astype(np.uint8)):
                if not np.array_equal(given, mine):
                    continue  # too long for a uint8
                assert_equal(ddl.alltoall(everyones[rank], given), expected)


def check_barrier_waits_for_the_slowest():
    for slowest in (0, ddl.size() - 1):
        time.sleep(0.3 if ddl.rank() == slowest else 0)
        came = time.monotonic()
        ddl.barrier()
        left = time.monotonic()
        assert max(comm().allgather(came)) <= min(comm().allgather(left))
