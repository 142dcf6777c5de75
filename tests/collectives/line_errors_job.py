"""Run under mpirun by test_line_errors.py: errors at any line between a call and the engine.

Usage: line_errors_job.py SEED ERRORS

In each trial one rank gets an error at one line of easyddl, in one collective, and in every second
trial another error while it deals with the first one. All ranks catch what they get, and call three
more. Each of these must raise an error or return the right result, on all ranks. At the end rank 0
prints the number of errors and the number of lines where they were.
"""

import random
import sys

import without_keras  # noqa: F401  (first)

# isort: split
import numpy as np
from line_errors import LineErrors, is_right, outcome, renew_communicator
from mpi4py import MPI

import easyddl as ddl
from easyddl.collectives import objects
from easyddl.runtime import world

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


class Variable:
    """What `broadcast_variables` takes, without a framework."""

    def __init__(self, value):
        self.name, self._value = "v", value

    def numpy(self):
        return self._value

    def assign(self, value):
        self._value = np.asarray(value)


def values(rank, number, count=37):
    return np.arange(count, dtype=np.float32) % 101 * (rank + 1) + number


def of_all(number, count=37):
    return [values(rank, number, count) for rank in range(SIZE)]


def allreduce(number):
    # Some are long enough for ranks of one host to reach into each other's memory.
    count = 100_003 if number % 4 == 0 else 37
    return ddl.allreduce(values(RANK, number, count), "sum"), sum(of_all(number, count))


def broadcast(number):
    root = number % SIZE
    return ddl.broadcast(values(RANK, number), root), values(root, number)


def allgather(number):
    rows = np.concatenate([values(rank, number)[: rank + 3] for rank in range(SIZE)])
    return ddl.allgather(values(RANK, number)[: RANK + 3]), rows


def alltoall(number):
    received = ddl.alltoall(values(RANK, number, 2 * SIZE))
    mine = slice(2 * RANK, 2 * RANK + 2)
    return received, np.concatenate([each[mine] for each in of_all(number, 2 * SIZE)])


def reduce_scatter(number):
    mine = slice(5 * RANK, 5 * RANK + 5)
    return ddl.reduce_scatter(values(RANK, number, 5 * SIZE)), sum(of_all(number, 5 * SIZE))[mine]


def allgather_object(number):
    return ddl.allgather_object((RANK, number)), [(rank, number) for rank in range(SIZE)]


def broadcast_object(number):
    root = number % SIZE
    return ddl.broadcast_object((RANK, number), root), (root, number)


def broadcast_variables(number):
    variable = Variable(values(RANK, number))
    ddl.broadcast_variables([variable])
    return variable.numpy(), values(0, number)


def barrier(number):
    return ddl.barrier(), None


def from_root(number):
    return objects.from_root(lambda: (RANK, number), "a call"), (0, number)


def root_first(number):
    with objects.root_first():
        pass
    return None, None


CALLS = (allreduce, broadcast, allgather, alltoall, reduce_scatter, allgather_object)
CALLS += (broadcast_object, broadcast_variables, barrier, from_root, root_first)


def call(function, number):
    found, expected = function(number)
    assert is_right(found, expected), (function.__name__, number, found, expected)


def main(seed, errors):
    random_of_all = random.Random(seed)
    lines = LineErrors()
    counts = {}
    for function in CALLS:
        lines.run(lambda function=function: call(function, 4))
        # Ranks may run other numbers of lines, such as the root of a broadcast.
        counts[function] = COMM.allgather(lines.lines)
        assert min(counts[function]) > 0, function
    planted, places = 0, set()
    while planted < errors:
        function, victim = random_of_all.choice(CALLS), random_of_all.randrange(SIZE)
        number = random_of_all.randrange(1000)
        at = random_of_all.randint(1, counts[function][victim])
        trial = lambda function=function, number=number: call(function, number)  # noqa: E731
        again = random_of_all.choice([None, random_of_all.randint(1, 25)])
        where = {"at": at, "again": again} if victim == RANK else {}
        outcomes = [outcome(lambda where=where, trial=trial: lines.run(trial, **where))]
        place = lines.place
        for _ in range(3):
            function, number = random_of_all.choice(CALLS), number + 1
            outcomes.append(outcome(lambda f=function, n=number: call(f, n)))
        silent = [each for each in outcomes if isinstance(each, AssertionError)]
        assert not silent, (COMM.rank, victim, place, outcomes)
        place = COMM.bcast(place, victim)
        if place is not None:
            planted += 1
            places.add(place)
            if victim == RANK:
                assert isinstance(outcomes[0], Exception), (place, outcomes)
        if COMM.allreduce(sum(isinstance(each, Exception) for each in outcomes[1:])):
            renew_communicator()
    call(allreduce, 1)
    if RANK == 0:
        print(f"{planted} errors at {len(places)} lines", flush=True)


if __name__ == "__main__":
    world.init()
    main(int(sys.argv[1]), int(sys.argv[2]))
