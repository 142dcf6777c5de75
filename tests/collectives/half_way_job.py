"""Run under mpirun by test_half_way.py: a rank's call ends half-way by a real SIGINT, once.

Usage: half_way_job.py FOLDER CALL WHERE [SECONDS]

Rank 0 is interrupted, and all ranks go on calling. WHERE it is:

- `wait`: waits for the others, which have not come yet.
- `second_half`: waits for the others, which make room for the result of their first half.
- `between`: makes room for the result itself.
- `transfer`: has large arrays on their way for SECONDS, while the others stand still; what the
  script has allocated then is watched while the others go on.

Each rank writes what came of its calls to a file of its own in the folder, as JSON.
"""

import faulthandler
import json
import os
import pathlib
import signal
import sys
import threading
import time

import without_keras  # noqa: F401  (first)

# isort: split
import numpy as np
from planted import Allocations, Interrupt, outcome

import easyddl as ddl

FOLDER, CALL, WHERE, *MORE = sys.argv[1:]
RANK, SIZE = ddl.rank(), ddl.size()
COUNT = (32 << 20) // 4 if WHERE == "transfer" else 300_007
WATCHED = 2.0  # seconds

ALLOCATIONS, INTERRUPT = Allocations(), Interrupt()


def values(rank, number):
    return np.arange(COUNT, dtype=np.float32) % 1009 * (rank + 1) + number


def objects(rank, number):
    return [rank, number, "x" * 100_000]


CALLS = {
    "allreduce": (
        lambda x, number: ddl.allreduce(x, "sum"),
        lambda number: sum(values(rank, number) for rank in range(SIZE)),
    ),
    "allgather": (
        lambda x, number: ddl.allgather(x),
        lambda number: np.concatenate([values(rank, number) for rank in range(SIZE)]),
    ),
    "alltoall": (  # all to rank 0
        lambda x, number: ddl.alltoall(x, [len(x), *[0] * (SIZE - 1)]),
        lambda number: np.concatenate(
            [values(rank, number)[: None if RANK == 0 else 0] for rank in range(SIZE)]
        ),
    ),
    "barrier": (lambda x, number: ddl.barrier(), lambda number: None),
    "allgather_object": (
        lambda x, number: ddl.allgather_object(objects(RANK, number)),
        lambda number: [objects(rank, number) for rank in range(SIZE)],
    ),
}


def before_room_is_made(act):
    """Has this rank do something between the halves of its first call."""
    ALLOCATIONS.plant(act)


def prepare(pids):
    """What is to happen in the first call."""
    if WHERE == "wait":
        if RANK == 0:
            INTERRUPT.send_in(0.3)
        else:
            time.sleep(0.8)
    elif WHERE == "second_half":
        if RANK == 0:
            INTERRUPT.send_in(0.3)
        else:
            before_room_is_made(lambda: time.sleep(0.8))
    elif WHERE == "between" and RANK == 0:
        before_room_is_made(lambda: os.kill(os.getpid(), signal.SIGINT))
    elif WHERE == "transfer" and RANK == 0:
        before_room_is_made(lambda: stop_the_others(pids[1:], float(MORE[0])))


def stop_the_others(pids, seconds):
    """In a thread: the others stand still in the middle of the call; this rank is interrupted."""

    def act():
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.02)
        INTERRUPT.send()
        time.sleep(0.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    threading.Thread(target=act, daemon=True).start()


def watch():
    """Memory that is the script's own, since the call has ended: is it overwritten?"""
    mine = [np.full(COUNT, 7, np.float32) for _ in range(2 * SIZE + 2)]
    mine += [np.full(COUNT * SIZE, 7, np.float32) for _ in range(2)]
    end = time.monotonic() + WATCHED
    overwritten = 0
    while time.monotonic() < end:
        overwritten += sum(int((array != 7).sum()) for array in mine)
        time.sleep(0.05)
    return overwritten


def main():
    faulthandler.dump_traceback_later(60, exit=True)
    call, expected_of = CALLS[CALL]
    pids = ddl.allgather_object(os.getpid())
    calls, found = [], {}
    for number in range(3):
        x, expected = values(RANK, number), expected_of(number)
        if number == 0:
            ddl.barrier()
            prepare(pids)

        def act(x=x, number=number):
            return INTERRUPT.run(lambda: call(x, number))

        calls.append(outcome(act, expected, x))
        del x, act
        if WHERE == "transfer" and number == 0 and RANK == 0:
            found["overwritten"] = watch()
    path = pathlib.Path(FOLDER, f"{RANK}.json")
    path.write_text(json.dumps({"calls": calls, **found}))


if __name__ == "__main__":
    main()
