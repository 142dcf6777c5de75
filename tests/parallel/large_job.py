"""Run under mpirun by test_soak.py: collectives of more bytes than an int can count."""

import sys

import numpy as np

import easyddl as ddl


def main(size):
    count = size // 4
    mine = np.full(count, ddl.rank() + 1, np.float32)
    # Around the places where a count of bytes, or of elements, would wrap.
    places = [0, 1, 2**29 - 1, 2**29, 2**29 + 1, count - 1]
    mine[places] += np.arange(len(places), dtype=np.float32)
    total = ddl.allreduce(mine, "sum")
    expected = 3 + 2 * np.arange(len(places), dtype=np.float32)
    assert (total[places] == expected).all(), total[places]
    total[places] = 3
    assert total.min() == total.max() == 3
    del total
    received = ddl.broadcast(mine, 1)
    expected = 2 + np.arange(len(places), dtype=np.float32)
    assert (received[places] == expected).all(), received[places]
    received[places] = 2
    assert received.min() == received.max() == 2
    print("all is well")


main(int(sys.argv[1]))
