"""Run under mpirun by test_large_arrays.py: collectives of more bytes than an int can count.

    large_arrays_job.py BYTES sums|rows|parts|objects ...

Inputs are zero but for a few marks. What `np.zeros` returns takes memory only where it is written,
so that a job needs little more memory than its results.
"""

import sys

import numpy as np

import easyddl as ddl


def marks(size):
    """Places around those where a count of bytes, or of elements, would wrap."""
    near = [0, 1, 2**29 - 1, 2**29, 2**29 + 1, 2**31 - 1, 2**31, size - 1]
    return [place for place in near if place < size]


def assert_marked(array, places, values):
    assert array[places].tolist() == values, array[places]
    array[places] = 0
    assert not array.any()


def sums(size):
    mine = np.full(size // 4, ddl.rank() + 1, np.float32)
    places = marks(len(mine))
    mine[places] += np.arange(len(places), dtype=np.float32)
    total = ddl.allreduce(mine, "sum") - 3
    assert_marked(total, places, [2.0 * i for i in range(len(places))])
    del total
    received = ddl.broadcast(mine, 1) - 2
    assert_marked(received, places, [float(i) for i in range(len(places))])


def rows(size):
    # Rank 0 has more rows than an int can count.
    mine = np.zeros(size if ddl.rank() == 0 else 12_345, np.int8)
    places = marks(len(mine))
    mine[places] = np.arange(1, len(places) + 1) * (ddl.rank() + 1)
    gathered = ddl.allgather(mine)
    assert len(gathered) == size + 12_345
    of_first, of_second = marks(size), [size + place for place in marks(12_345)]
    values = [i + 1 for i in range(len(of_first))] + [2 * (i + 1) for i in range(len(of_second))]
    assert_marked(gathered, of_first + of_second, values)
    del gathered
    # To rank 1 as many as an int cannot count, to rank 0 the rest.
    splits = np.array([0, len(mine)] if ddl.rank() == 0 else [len(mine), 0])
    received = ddl.alltoall(mine, splits)
    assert len(received) == (12_345 if ddl.rank() == 0 else size)
    other = 2 - ddl.rank()
    places = marks(len(received))
    assert_marked(received, places, [other * (i + 1) for i in range(len(places))])


def parts(size):
    mine = np.zeros(2 * size, np.int8)
    places = marks(size)
    mine[places] = np.arange(len(places)) + ddl.rank()
    mine[[size + place for place in places]] = 5 * (np.arange(len(places)) + ddl.rank())
    part = ddl.reduce_scatter(mine)
    assert len(part) == size
    scale = 5 if ddl.rank() == 1 else 1
    assert_marked(part, places, [scale * (2 * i + 1) for i in range(len(places))])


def objects(size):
    received = ddl.broadcast_object(bytes(size) + b"end" if ddl.rank() == 1 else None, 1)
    assert len(received) == size + 3 and received.endswith(b"\0end")
    assert received.count(0) == size
    del received
    first, second = ddl.allgather_object(bytes(size) + b"end" if ddl.rank() == 0 else "short")
    assert len(first) == size + 3 and first.endswith(b"\0end") and second == "short"


def main(size, names):
    for name in names:
        globals()[name](size)
    print("all is well")


main(int(sys.argv[1]), sys.argv[2:])
