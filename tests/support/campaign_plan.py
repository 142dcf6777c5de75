"""What a job of the fault campaign does: calls of the public collectives, and errors among them.

A plan is a function of a seed, so that all ranks and the test know it. It needs no MPI.

A *trial* is a few calls on all ranks, with one error planted. What it says of a rank's call:

- "right": it returned what NumPy computes from all ranks' inputs.
- "wrong": it returned anything else, or changed its input.
- "error": it raised.
"""

import dataclasses
import random

import numpy as np

# Elements of an array: none, one, primes; where data goes at once, or in one chunk, and one more;
# several chunks (of 256 KiB on one host, of 1 MiB on several).
SIZES = (0, 1, 2, 7, 97, 1009, 2048, 2049, 8191, 65_536, 65_537, 131_101, 300_007, 700_001)
FEW = 97  # rows that differ by rank are about as many, or several chunks' worth
DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
OPS = ("mean", "sum", "min", "max", "prod")
CALLS = (
    "allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "broadcast_object",
    "allgather_object", "broadcast_variables", "barrier",
)  # fmt: skip

# Errors that leave the ranks able to go on, and those that may not.
PASSING = ("memory", "memory", "memory", "memory_on_all", "argument", "argument", "argument_on_all")
BREAKING = ("interrupt", "interrupt", "interrupt", "stall")

STALL_ABORT = 8  # seconds: the deadline where the last trial is a stall; MPI_Init needs some too


@dataclasses.dataclass(frozen=True)
class Call:
    """One collective, the same on all ranks but for what `values` gives them.

    Attributes:
        name: String.
        seed: Integer, of the ranks' inputs.
        size: Integer. The elements of a rank's input, about.
        width: Integer. The last dimension, which tells this call from those beside it.
        dtype, op: Strings.
        root: Integer.
    """

    name: str
    seed: int
    size: int
    width: int
    dtype: str
    op: str
    root: int


@dataclasses.dataclass(frozen=True)
class Trial:
    """Calls with one error planted among them.

    Attributes:
        kind: String. Of `PASSING` or `BREAKING`.
        calls: List of `Call`.
        victim: Integer. The rank that meets the error, where not all do.
        at: Integer. Which of the calls it is planted in, or before.
        detail: Integer. Which one: the allocation that fails, counted from that call on; or the
            wrong argument.
        seconds: Float. When the signal comes, after the trial began; or for how long the victim
            sleeps.
        pauses: Seconds that each rank computes before each call.
    """

    kind: str
    calls: list
    victim: int
    at: int
    detail: int
    seconds: float
    pauses: list


def _call(chance, ranks, before, names):
    # A rank whose call was interrupted before the others heard of it is one ahead of them, which
    # only another call tells: what stands side by side must differ.
    name = chance.choice([name for name in names if before is None or name != before.name])
    dtype = chance.choice(DTYPES)
    ops = [op for op in OPS if op != "mean" or dtype.startswith("float")]
    return Call(
        name=name,
        seed=chance.randrange(10**6),
        size=chance.choice(SIZES),
        width=chance.choice([width for width in (1, 2, 3) if not before or width != before.width]),
        dtype=dtype,
        op=chance.choice(ops),
        root=chance.randrange(ranks),
    )


def _trial(chance, ranks, kind):
    # There is nothing to allocate in a barrier, nor an argument that is wrong on all ranks.
    with_barrier = kind in ("argument", *BREAKING)
    names = CALLS if with_barrier else [name for name in CALLS if name != "barrier"]
    calls = []
    for _ in range(chance.randint(3, 6)):
        calls.append(_call(chance, ranks, calls[-1] if calls else None, names))
    if kind not in BREAKING and chance.random() < 0.5:  # the same again and again
        calls = [calls[0]] * len(calls)
    victim, at = chance.randrange(ranks), chance.randrange(len(calls))
    if kind.startswith("memory"):
        at //= 2  # for there to be so many allocations after it
    pauses = [[chance.choice([0, 0, 0.002, 0.01]) for _ in calls] for _ in range(ranks)]
    seconds = 0.0
    if kind == "interrupt":
        # The others are late for one of the calls, in which the victim waits.
        for rank in range(ranks):
            if rank != victim:
                pauses[rank][at] = chance.choice([0, 0.15, 0.3])
        seconds = chance.uniform(0, 0.35)
    if kind == "stall":
        seconds = STALL_ABORT + chance.uniform(1.0, 2.5)
    return Trial(kind, calls, victim, at, chance.randrange(12), seconds, pauses)


def trials_of(seed, ranks, passing):
    """The trials of one job: some that its ranks survive; in the end one that may break them."""
    chance = random.Random(f"{seed} {ranks} {passing}")
    kinds = [chance.choice(PASSING) for _ in range(passing)] + [chance.choice(BREAKING)]
    return [_trial(chance, ranks, kind) for kind in kinds]


def rows_of(call, rank):
    """The rows of a rank's input where they may differ by rank."""
    chance = random.Random(f"rows {call.seed} {rank}")
    return chance.choice([0, 1, FEW, call.size // call.width, call.size // call.width // 3])


def splits_of(call, rank, ranks):
    """How many of its rows a rank sends to each, in an alltoall."""
    chance = random.Random(f"splits {call.seed} {rank}")
    rows = rows_of(call, rank)
    cuts = sorted(chance.randint(0, rows) for _ in range(ranks - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, rows], strict=True)]


def input_of(call, rank, ranks):
    """The array that a rank passes: small integers, whose reduction is exact in any order."""
    rows = call.size // call.width
    if call.name in ("allgather", "alltoall"):
        rows = rows_of(call, rank)
    if call.name == "reduce_scatter":
        rows *= ranks
    numbers = np.random.default_rng([call.seed, rank]).integers(-3, 4, (rows, call.width))
    return numbers.astype(call.dtype)


def object_of(call, rank):
    """The object that a rank passes."""
    words = {"rank": rank, "seed": call.seed}
    return [words, "x" * rows_of(call, rank), np.full(rows_of(call, rank), rank)]


def _reduced(arrays, op):
    wide = np.float32 if arrays[0].dtype == np.float16 else arrays[0].dtype
    stacked = np.stack(arrays).astype(wide)
    function = {"min": np.minimum, "max": np.maximum, "prod": np.multiply}.get(op, np.add)
    result = function.reduce(stacked, axis=0, dtype=wide)
    if op == "mean":
        result = result / wide(len(arrays)) if wide is np.float32 else result / len(arrays)
    return result.astype(arrays[0].dtype)


def expected_of(call, rank, ranks):
    """What the call must return on a rank."""
    if call.name == "barrier":
        return None
    if call.name == "broadcast_object":
        return object_of(call, call.root)
    if call.name == "allgather_object":
        return [object_of(call, each) for each in range(ranks)]
    inputs = [input_of(call, each, ranks) for each in range(ranks)]
    if call.name in ("broadcast", "broadcast_variables"):
        return inputs[call.root]
    if call.name == "allgather":
        return np.concatenate(inputs)
    if call.name == "alltoall":
        parts = []
        for each, array in enumerate(inputs):
            splits = splits_of(call, each, ranks)
            begin = sum(splits[:rank])
            parts.append(array[begin : begin + splits[rank]])
        return np.concatenate(parts)
    total = _reduced(inputs, call.op)
    if call.name == "reduce_scatter":
        return np.split(total, ranks)[rank]
    return total


def is_equal(found, expected):
    """Equal in type, shape and all elements."""
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(is_equal(*pair) for pair in zip(found, expected, strict=True))
        )
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and found.dtype == expected.dtype
            and found.shape == expected.shape
            and found.tobytes() == expected.tobytes()
        )
    return type(found) is type(expected) and found == expected
