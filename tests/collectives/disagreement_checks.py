"""Bad input: on all ranks, on one of them, and ranks that ask for different things.

No rank is left waiting, all know what happened, and the next collective is right.
"""

import itertools

import numpy as np
from ranks import assert_same_on_all, assert_world_works, error_of
from steps import BACKEND

import easyddl as ddl

GOOD = np.ones(4, np.float32)


def bad_inputs():
    """(what is called wrongly, what of it is right, the error, what that must say)."""
    size = ddl.size()
    rows = np.ones((size, 2), np.float32)
    one = np.float32(1)
    integers = np.ones(4, np.int32)

    def allreduce(x, op="mean"):
        return lambda: ddl.allreduce(x, op)

    good = allreduce(GOOD)
    yield allreduce(GOOD, "median"), good, ValueError, ("`op` must be one of", "op='median'")
    yield allreduce(GOOD, None), good, ValueError, ("`op` must be one of", "op=None")
    for dtype in ("int8", "int32", "int64", "uint8", "bool"):
        words = ('op="mean"', "integers", f"x with dtype {dtype}")
        yield allreduce(GOOD.astype(dtype)), good, TypeError, words
    yield allreduce(3), good, TypeError, ('op="mean"', "int64")
    yield allreduce(GOOD > 0, "sum"), good, TypeError, ('op="sum" is not defined for bool',)
    for dtype in ("complex64", "complex128", "uint16", "uint32", "uint64"):
        words = ("Cannot compute with this dtype", f"x with dtype {dtype}")
        yield allreduce(GOOD.astype(dtype), "sum"), good, TypeError, words
    no_numbers = [
        (np.array(["a", "b"]), "<U1"),
        (np.array([b"a"]), "|S1"),
        (np.array([1, None]), "object"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (2**70, "object"),
    ]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        no_numbers.append((tf.constant(["a"]), "object"))
    for x, dtype in no_numbers:
        words = ("`x` must hold numbers", "broadcast_object", dtype)
        yield allreduce(x, "max"), good, TypeError, words
        yield lambda x=x: ddl.broadcast(x), lambda: ddl.broadcast(GOOD), TypeError, words
        yield lambda x=x: ddl.allgather(x), lambda: ddl.allgather(GOOD), TypeError, words
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    words = ("Fill in those that are masked", "x of type MaskedArray")
    yield allreduce(masked), good, TypeError, words
    for x, kind in (
        ([1.0, 2.0], "list"),
        ({"a": 1}, "dict"),
        ("text", "str"),
        (None, "NoneType"),
        (lambda: 1, "function"),
    ):
        words = ("`x` must be a NumPy array, a number, or a tensor", f"x of type {kind}")
        yield allreduce(x), good, TypeError, words
        yield lambda x=x: ddl.alltoall(x), lambda: ddl.alltoall(rows), TypeError, words

    for root, kind, words in (
        (size, ValueError, (f"`root_rank` must be a rank, from 0 to {size - 1}", f"={size}")),
        (-1, ValueError, ("`root_rank` must be a rank", "root_rank=-1")),
        (True, TypeError, ("`root_rank` must be an integer", "root_rank=True")),
        (0.0, TypeError, ("`root_rank` must be an integer", "root_rank=0.0")),
        ("0", TypeError, ("`root_rank` must be an integer", "root_rank='0'")),
        (None, TypeError, ("`root_rank` must be an integer", "root_rank=None")),
    ):
        yield lambda r=root: ddl.broadcast(GOOD, r), lambda: ddl.broadcast(GOOD), kind, words
        yield (
            lambda r=root: ddl.broadcast_object("a", r),
            lambda: ddl.broadcast_object("a"),
            kind,
            words,
        )

    words = ("`x` must have at least one dimension", "0-d")
    yield lambda: ddl.allgather(one), lambda: ddl.allgather(rows), ValueError, words
    yield lambda: ddl.reduce_scatter(one), lambda: ddl.reduce_scatter(rows), ValueError, words
    yield lambda: ddl.alltoall(2.0), lambda: ddl.alltoall(rows), ValueError, words

    def reduce_scatter():
        return ddl.reduce_scatter(rows)

    def alltoall():
        return ddl.alltoall(rows)

    if size > 1:
        long = np.ones((size + 1, 2), np.float32)
        words = (f"multiple of the number of ranks, {size}", f"x of shape ({size + 1}, 2)")
        yield lambda: ddl.reduce_scatter(long), reduce_scatter, ValueError, words
        yield lambda: ddl.alltoall(long), alltoall, ValueError, words
    yield lambda: ddl.reduce_scatter(rows, "all"), reduce_scatter, ValueError, ("op='all'",)
    many = np.repeat(integers, size)
    yield lambda: ddl.reduce_scatter(many, "mean"), reduce_scatter, TypeError, ("int32",)
    for splits, words in (
        ([1] * (size + 1), (f"`splits` must hold {size} integers", str([1] * (size + 1)))),
        ([], ("`splits` must hold",)),
        (size, ("`splits` must hold", f"Received: {size}")),
        ([1.0] * size, ("`splits` must hold", "1.0")),
        ([True] * size, ("`splits` must hold", "True")),
        (["1"] * size, ("`splits` must hold", "'1'")),
        ([2] * size, (f"add up to the first dimension of `x`, {size}", "2")),
        ([size + 1, -1, *[0] * (size - 2)] if size > 1 else [-1], ("non-negative", "-1")),
        ([[1], [2, 3]], ("`splits` must hold",)),
    ):
        yield lambda s=splits: ddl.alltoall(rows, s), alltoall, ValueError, words


def check_bad_input_on_all_ranks():
    for call, _, kind, words in bad_inputs():
        text = error_of(kind, call)
        for word in words:
            assert word in text, (word, text)
        assert_same_on_all(text)
    assert_world_works()


def check_bad_input_on_one_rank():
    if ddl.size() == 1:
        return
    for number, (bad, good, _, words) in enumerate(bad_inputs()):
        wrong = number % ddl.size()
        text = error_of(RuntimeError, bad if ddl.rank() == wrong else good)
        assert f"Rank {wrong} called " in text and "with a bad argument [" in text, text
        for word in words:
            assert word in text, (word, text)
        assert_same_on_all(text)
        if number % 8 == 0:
            assert_world_works()
    assert_world_works()


def check_different_mistakes_at_once():
    if ddl.size() == 1:
        return
    if ddl.rank() == 0:
        text = error_of(RuntimeError, lambda: ddl.allreduce(GOOD, "median"))
    else:
        text = error_of(RuntimeError, lambda: ddl.allreduce([1, 2]))
    assert "op='median'" in text and "x of type list" in text, text
    assert_same_on_all(text)
    assert_world_works()


def check_symbolic_tensor():
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    @tf.function
    def step(x):
        return ddl.allgather(x)

    text = error_of(TypeError, lambda: step(tf.constant(GOOD)))
    assert "symbolic tensor" in text and "DistributedOptimizer" in text, text
    assert_world_works()


def assert_disagreement(mine, theirs, *words):
    """The calls of rank `odd`, and of the others, raise one error that names both."""
    for odd in (0, ddl.size() - 1):
        text = error_of(RuntimeError, mine if ddl.rank() == odd else theirs)
        assert_same_on_all(text)
        assert text.startswith("The ranks disagree about a collective"), text
        assert f"Rank {odd} called " in text, text
        others = [str(rank) for rank in range(ddl.size()) if rank != odd]
        named = "Rank" if len(others) == 1 else "Ranks"
        assert f"{named} {', '.join(others)} called " in text, text
        for word in words:
            assert word in text, (word, text)
        assert_world_works()


def floats(*shape):
    return np.ones(shape, np.float32)


def check_shapes_that_differ():
    if ddl.size() == 1:
        return
    for here, there in (
        ((3,), (4,)),
        ((2, 3), (3, 2)),
        ((), (1,)),
        ((0,), (5,)),
        ((2048,), (2049,)),  # at once; in chunks
        ((2049,), (2048,)),
        ((4,), (65536,)),
        ((65536,), (65537,)),  # one chunk; two
        ((5,), (400_003,)),
        ((400_003,), (1_700_003,)),  # several; many more
    ):
        assert_disagreement(
            lambda s=here: ddl.allreduce(floats(*s)),
            lambda s=there: ddl.allreduce(floats(*s)),
            f"of shape {here}",
            f"of shape {there}",
        )
        assert_disagreement(
            lambda s=here: ddl.broadcast(floats(*s)),
            lambda s=there: ddl.broadcast(floats(*s)),
            f"of shape {here}",
            f"of shape {there}",
        )


def check_other_dimensions_that_differ():
    if ddl.size() == 1:
        return
    size = ddl.size()
    assert_disagreement(
        lambda: ddl.allgather(floats(2, 3)),
        lambda: ddl.allgather(floats(2, 4)),
        "(any, 3",
        "(any, 4",
    )
    assert_disagreement(
        lambda: ddl.allgather(floats(2)), lambda: ddl.allgather(floats(2, 1)), "(any,"
    )
    assert_disagreement(
        lambda: ddl.alltoall(floats(size, 3)),
        lambda: ddl.alltoall(floats(size, 4)),
        "(any, 3",
        "(any, 4",
    )
    assert_disagreement(
        lambda: ddl.reduce_scatter(floats(size)),
        lambda: ddl.reduce_scatter(floats(2 * size)),
        f"({size},)",
        f"({2 * size},)",
    )


def check_dtypes_that_differ():
    if ddl.size() == 1:
        return
    for here, there in (("float32", "float64"), ("float16", "int16"), ("uint8", "int8")):
        mine, theirs = GOOD.astype(here), GOOD.astype(there)
        for call in (
            lambda x: ddl.allreduce(x, "sum"),
            ddl.broadcast,
            ddl.allgather,
            lambda x: ddl.reduce_scatter(np.repeat(x, ddl.size())),
            lambda x: ddl.alltoall(np.repeat(x, ddl.size())),
        ):
            assert_disagreement(
                lambda call=call, x=mine: call(x), lambda call=call, x=theirs: call(x), here, there
            )


def check_ops_that_differ():
    if ddl.size() == 1:
        return
    for call in (ddl.allreduce, ddl.reduce_scatter):
        for count in (ddl.size(), 70_000 * ddl.size()):
            assert_disagreement(
                lambda call=call, n=count: call(floats(n), "sum"),
                lambda call=call, n=count: call(floats(n), "max"),
                "op='sum'",
                "op='max'",
            )


def check_roots_that_differ():
    if ddl.size() == 1:
        return
    for call in (
        lambda root: ddl.broadcast(GOOD, root),
        lambda root: ddl.broadcast(floats(70_000), root),
        lambda root: ddl.broadcast_object("a", root),
        lambda root: ddl.broadcast_variables([], root),
    ):
        assert_disagreement(
            lambda call=call: call(0), lambda call=call: call(1), "root_rank=0", "root_rank=1"
        )


def check_collectives_that_differ():
    if ddl.size() == 1:
        return
    rows = floats(ddl.size(), 3)
    calls = {
        "barrier(": ddl.barrier,
        "allreduce(": lambda: ddl.allreduce(rows),
        "allreduce(x: float32 of shape (300000,)": lambda: ddl.allreduce(floats(300_000)),
        "broadcast(": lambda: ddl.broadcast(rows),
        "allgather(": lambda: ddl.allgather(rows),
        "reduce_scatter(": lambda: ddl.reduce_scatter(rows),
        "alltoall(": lambda: ddl.alltoall(rows),
        "allgather_object(": lambda: ddl.allgather_object(1),
        "broadcast_object(": lambda: ddl.broadcast_object(1),
        "broadcast_variables(": lambda: ddl.broadcast_variables([]),
    }
    names = list(calls)
    # Each with the next, and each with the barrier.
    pairs = {frozenset(pair) for pair in itertools.pairwise(names)}
    pairs |= {frozenset(("barrier(", name)) for name in names[1:]}
    for here, there in sorted(sorted(pair) for pair in pairs):
        assert_disagreement(calls[here], calls[there], here, there)


def check_hosts_that_disagree():
    # All ranks of one host ask for the same, and only the hosts differ.
    if ddl.num_nodes() == 1:
        return
    for count in (1 + ddl.node_rank(), 700_000 * (1 + ddl.node_rank())):
        text = error_of(RuntimeError, lambda count=count: ddl.allreduce(floats(count)))
        assert_same_on_all(text)
        assert text.startswith("The ranks disagree about a collective"), text
        assert_world_works()
