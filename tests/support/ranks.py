"""What the checks of the world share: every rank knows every rank's input.

Results are compared by MPI itself, not by what is tested.
"""

import functools
import hashlib

import keras
import ml_dtypes
import numpy as np

import easyddl as ddl
from easyddl.runtime import world

if keras.backend.backend() == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)  # else it has no 64-bit numbers

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
OPS = ("mean", "sum", "min", "max", "prod")


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def ops_of(dtype):
    if dtype in FLOATS:
        return OPS
    return ("min", "max", "prod") if dtype == "bool" else ("sum", "min", "max", "prod")


@functools.cache
def comm():
    ddl.init()
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


def values(rank, shape, dtype, op="sum", seed=0):
    """One rank's input: numbers whose reduction over a few ranks is exact in any order."""
    random = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return random.random(shape) < 0.7
    if op == "prod":
        numbers = random.choice([1, 2, 3] if dtype == "uint8" else [-2, -1, 1, 2], shape)
    elif dtype == "uint8":
        numbers = random.integers(0, 9, shape)
    else:
        numbers = random.integers(-9, 10, shape)
    if dtype in FLOATS and op != "prod":
        numbers = numbers / 4
    return np.asarray(numbers).astype(numpy_dtype(dtype))


def inputs(*args, **kwargs):
    """All ranks' inputs, by rank."""
    return [values(rank, *args, **kwargs) for rank in range(ddl.size())]


def noise(rank, count, dtype):
    """Numbers whose sum depends on the order of its terms."""
    random = np.random.default_rng([11, rank])
    numbers = random.standard_normal(count) * 10.0 ** random.integers(-3, 4, count)
    return numbers.astype(numpy_dtype(dtype))


def reduced(arrays, op):
    """What NumPy makes of all ranks' inputs; 16-bit floats are summed in float32."""
    dtype = arrays[0].dtype
    is_half = dtype.name in ("float16", "bfloat16")
    wide = np.stack(arrays).astype(np.float32 if is_half else dtype)
    function = {
        "sum": np.add,
        "mean": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "prod": np.logical_and if dtype.name == "bool" else np.multiply,
    }[op]
    with np.errstate(all="ignore"):
        result = function.reduce(wide, axis=0, dtype=wide.dtype)
        if op == "mean":
            result = result / wide.dtype.type(len(arrays))
        return np.asarray(result).astype(dtype)


def sum_sent_as(wire_dtype, mine):
    """The sum over all ranks, of which hosts send each other their parts in a dtype."""
    result = np.empty_like(mine)
    views = [mine.view(np.uint8)], [result.view(np.uint8)]
    text = world.fingerprint(f"a sum of {len(mine)} in {wire_dtype}")
    world.communicator().allreduce(*views, mine.dtype.name, "sum", text, wire_dtype)
    return result


def bits(array):
    """The elements of an array, for a comparison that tells -0 from 0 and NaN from NaN."""
    return array.dtype.name, array.shape, array.tobytes()


def assert_equal(actual, expected):
    """Equal in type, shape and every element, NaN being equal to NaN."""
    assert isinstance(actual, np.ndarray), type(actual)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if expected.dtype.name in ("float16", "bfloat16"):
        with np.errstate(invalid="ignore"):  # on aarch64 NumPy warns of a NaN that it converts
            actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def assert_same_on_all(thing):
    """Equal on all ranks, arrays bit by bit."""
    if isinstance(thing, np.ndarray):
        thing = (*bits(thing)[:2], hashlib.sha256(thing.tobytes()).hexdigest())
    everyones = comm().allgather(thing)
    assert all(each == everyones[0] for each in everyones), everyones


def assert_world_works():
    """The next collectives are right: one that goes at once, one in several chunks."""
    for count in (5, 150_001):
        mine = np.arange(count, dtype=np.float32) * (ddl.rank() + 1)
        factor = ddl.size() * (ddl.size() + 1) // 2
        assert_equal(ddl.allreduce(mine, "sum"), np.arange(count, dtype=np.float32) * factor)


def error_of(kind, call):
    """The text of the error that `call` must raise."""
    try:
        result = call()
    except kind as error:
        # The engine's own error is a RuntimeError; the others are what they say.
        assert isinstance(error, RuntimeError) or type(error) is kind, repr(error)
        return str(error)
    raise AssertionError(f"no {kind.__name__}, but {result!r}")
