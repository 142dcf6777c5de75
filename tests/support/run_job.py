"""A rank of a job of `easyddl run`, without Keras: it tells what it got, then does as asked."""

import hashlib
import json
import os
import signal
import sys
import time
import traceback


def rank():
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return int(next(os.environ[name] for name in names if name in os.environ))


def tell(arguments):
    """Prints this rank's facts as one line of JSON."""
    facts = {
        "rank": rank(),
        "arguments": arguments,
        "directory": os.getcwd(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "host": os.uname().nodename,
        "environment": dict(os.environ),
    }
    print(json.dumps(facts), flush=True)


def add_up():
    """Adds up the ranks' numbers by MPI, so that a world of one is noticed."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    print(f"size {world.size} sum {world.allreduce(world.rank + 1)}", flush=True)


def print_startup_lines():
    """Prints what TensorFlow prints when it is loaded, one warning, and one line of our own."""
    lines = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795402497.820340    6560 port.cc:153] oneDNN custom operations are on.",
        "W0000 00:00:1795402497.820340    6560 port.cc:153] a warning",
        f"own line {rank()}",
    )
    for line in (*lines[:2], *lines):  # the first ones come for each of TensorFlow's libraries
        print(line, file=sys.stderr, flush=True)


def read():
    print(f"read {sys.stdin.read()!r}", flush=True)


def digest():
    """Prints the size and the hash of standard input."""
    data = sys.stdin.buffer.read()
    print(f"read {len(data)} bytes {hashlib.sha256(data).hexdigest()}", flush=True)


def echo():
    """Prints each line of standard input as it comes."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(f"got {line.strip()}", flush=True)
    print("end of input", flush=True)


def ignore_input():
    print("not read", flush=True)


def ask():
    """Prints a line that it does not end, and waits until the test has seen it."""
    print("question? ", end="", flush=True)
    time.sleep(60)


def ignore_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sleep()


def handle_some():
    for number in (signal.SIGUSR1, signal.SIGXCPU, signal.SIGRTMIN + 1):
        signal.signal(number, lambda *_: print("handled", flush=True))
    sleep()


def end_slowly():
    """Takes a while to end after a signal, as a training that saves a backup."""

    def end(number, frame):
        time.sleep(1)
        print("saved", flush=True)
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    sleep()


def sleep():
    print(f"pid {os.getpid()}", flush=True)
    time.sleep(600)


def fail(how):
    """Ends rank 1 in some way, while the others sleep."""
    if rank() != 1:
        time.sleep(600)
    print("the last line of rank 1", flush=True)
    if how == "status":
        os._exit(3)
    if how == "raise":
        raise ValueError("a mistake")
    if how == "abort":
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(600)


def fail_by_easyddl():
    """Raises an error on rank 1 after easyddl has started, while the others wait for it."""
    import without_keras  # noqa: F401 - takes Keras's place

    import easyddl as ddl

    ddl.init()
    if ddl.rank() == 1:
        raise ValueError("a mistake")
    ddl.barrier()


def leave(when):
    """Ends rank 1 with status 0 while the others wait for it, in a collective or in the start.

    With `late`, rank 1 does not come to the start.
    """
    if when == "before" and rank() == 1:
        return  # if it had imported easyddl, it would take part in the start
    import without_keras  # noqa: F401 - takes Keras's place

    import easyddl as ddl

    if when == "late" and rank() == 1:
        time.sleep(600)
    ddl.init()
    if ddl.rank() == 1:
        os._exit(0)
    ddl.barrier()


def fail_before_start():
    """Raises an error on rank 1 before easyddl has started, while the others wait for it."""
    import without_keras  # noqa: F401 - takes Keras's place

    import easyddl as ddl
    from easyddl.runtime import job_exit

    job_exit.install()
    if rank() == 1:
        raise ValueError("a mistake")
    ddl.init()


SEVERAL_LINES = "a mistake\nof several lines\n\n  * which `easyddl run` keeps"


def fail_alike():
    """Raises the same error on all ranks, after each has written to both streams."""
    import without_keras  # noqa: F401 - takes Keras's place

    import easyddl as ddl

    ddl.init()
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"own line of rank {rank()}\n")  # in one piece: mpirun mixes pieces
        stream.flush()
    ddl.barrier()
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError(SEVERAL_LINES) from error


def fail_apart():
    """Raises an error on each rank, which differ in a number."""
    import without_keras  # noqa: F401 - takes Keras's place

    import easyddl as ddl

    ddl.init()
    ddl.barrier()
    raise ValueError(f"the mistake number {rank()}")


def fail_without_easyddl():
    raise ValueError(SEVERAL_LINES)


def catch():
    """Prints the traceback of the same error on all ranks, goes on, and waits to be ended."""
    try:
        {}["missing"]
    except KeyError:
        traceback.print_exc()
    print("which was caught", file=sys.stderr)
    sleep()


def start_easyddl():
    import without_keras  # noqa: F401 - takes Keras's place

    import easyddl as ddl

    ddl.init()
    print("easyddl has started", flush=True)


def end_mpi_at_sighup():
    from mpi4py import MPI  # noqa: F401 - it ends MPI when this process exits

    def end(number, frame):
        signal.signal(number, signal.SIG_IGN)  # it comes twice
        sys.exit()

    signal.signal(signal.SIGHUP, end)
    sleep()


def sleep_after_start():
    start_easyddl()
    sleep()


def abort_in_world():
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    if rank() == 1:
        print("the last line of rank 1", flush=True)
        MPI.COMM_WORLD.Abort(7)
    MPI.COMM_WORLD.Barrier()


def use_files_of_mpi():
    """Starts MPI, prints the files that it needs until its end, and fails if it gets a signal."""
    from mpi4py import MPI

    from easyddl.machine import processes
    from easyddl.runtime import mpi_files

    MPI.COMM_WORLD.Barrier()
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
    signal.signal(signal.SIGUSR2, lambda *_: MPI.COMM_WORLD.Abort(7))
    files = mpi_files.of_rank(os.getpid())
    for ancestor in processes.ancestors():
        files |= mpi_files.of_agent(ancestor.id)
    print(f"pid {os.getpid()} files {' '.join(files)}", flush=True)
    time.sleep(600)


def leave_child():
    if os.fork() == 0:
        time.sleep(600)
    print("parent ends", flush=True)


def talk(lines):
    """Prints more than pipes hold."""
    for line in range(int(lines)):
        print(f"{rank()} {line} {'x' * 80}")


OUTPUTS = ("no_newline", "binary", "returns", "empty_lines", "bytes_one_by_one")


def write_much(how):
    """Writes what takes a bad reader long."""
    if how == "bytes_one_by_one":
        for _ in range(100_000):
            os.write(1, b"x")
        return
    piece, count = {
        "no_newline": (b"x" * 1_000_000, 100),
        "binary": (bytes(range(256)) * 4000, 50),
        "returns": (b"\r" * 1_000_000, 100),
        "empty_lines": (b"\n" * 1_000_000, 1),
    }[how]
    for _ in range(count):
        sys.stdout.buffer.write(piece)


def write_everything():
    for how in OUTPUTS:
        write_much(how)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "tell":
        tell(arguments)
    else:
        globals()[what](*arguments)
