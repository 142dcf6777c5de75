"""Times the allreduce algorithms of the notebook 03_allreduce_seen between hosts.

    sudo python tutorials/benchmarks/allreduce_algorithms.py

The hosts are network namespaces of this machine, so it needs root, iproute2 and MPICH. The
algorithms are those of the notebook: its cells tagged `algorithms` are executed on every rank. The
results go to the file that the notebook shows. They hold on a quiet machine only.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import tagged_cells

TUTORIALS = pathlib.Path(__file__).resolve().parents[1]
TESTS = TUTORIALS.parent / "tests"
NOTEBOOK = TUTORIALS / "notebooks" / "03_allreduce_seen.py"
PING_PONGS = 20
LARGE = 4 << 20  # bytes of the messages that show the time of a byte
BURST = "70kb"  # tbf would have to split Linux's packets of up to 64 KiB if this were less


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="on each host")
    parser.add_argument("--mbit", type=int, default=1000, help="the speed of each host's wire")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES",
                        default=[1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20])  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=NOTEBOOK.with_suffix(".json"))
    parser.add_argument("--on-a-host", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def start(options):
    """Makes the hosts, and starts this script on them."""
    sys.path[:0] = [str(TESTS / "support"), str(TESTS / "hosts")]
    import mpi
    import network

    if network.missing() is not None:
        sys.exit(network.missing())
    if mpi.is_open_mpi():
        sys.exit("needs MPICH's mpirun")
    with network.Network(options.hosts, mbit=options.mbit) as net:
        limit_bursts(net, options.mbit)
        env = net.environment()
        path = [str(TESTS.parent), str(TESTS / "support"), env["PYTHONPATH"]]
        env["PYTHONPATH"] = os.pathsep.join(path)
        line = net.mpirun(options.ranks, [__file__, "--on-a-host", *sys.argv[1:]])
        subprocess.run(line, env=env, stdin=subprocess.DEVNULL, check=True)


def limit_bursts(net, mbit):
    """Makes the rate hold for small arrays, too: by default a host may send 256 KiB at once."""
    for host in net.hosts:
        line = ["tc", "-n", net.namespace(host), "qdisc", "change", "dev", "eth0", "root", "tbf"]
        line += ["rate", f"{mbit}mbit", "burst", BURST, "latency", "50ms"]
        subprocess.run(line, check=True)


def ping_pong_seconds(comm, partner, size):
    """The median time of a message from rank 0 to its partner, by half the way there and back."""
    import numpy as np

    data, seconds = np.ones(size // 4, np.float32), []
    comm.Barrier()
    for _ in range(PING_PONGS):
        begin = time.perf_counter()
        if comm.rank == 0:
            comm.Send(data, partner)
            comm.Recv(data, partner)
        elif comm.rank == partner:
            comm.Recv(data, 0)
            comm.Send(data, 0)
        seconds.append((time.perf_counter() - begin) / 2)
    comm.Barrier()
    return statistics.median(seconds)


def measure(options):
    """Runs on every rank; rank 0 writes the results."""
    import numpy as np
    import without_keras  # noqa: F401  (before easyddl: Keras takes each rank seconds)

    import easyddl as ddl

    ddl.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    modules = {"ddl": ddl, "functools": functools, "np": np, "os": os}
    modules |= {"statistics": statistics, "time": time}
    names = tagged_cells.execute(NOTEBOOK, "algorithms", **modules)
    latency = ping_pong_seconds(comm, options.ranks, 4)
    large = ping_pong_seconds(comm, options.ranks, LARGE)
    results = [
        {"bytes": size, "seconds": names["seconds_of_all"](size, options.rounds, options.ranks)}
        for size in options.sizes
    ]
    if comm.rank != 0:
        return
    command = ["python", "tutorials/benchmarks/allreduce_algorithms.py", *sys.argv[1:]]
    report = {
        "command": shlex.join(each for each in command if each != "--on-a-host"),
        "date": datetime.date.today().isoformat(),
        "hosts": options.hosts,
        "ranks_per_host": options.ranks,
        "cores": os.cpu_count(),
        "mbit_per_second": options.mbit,
        "mpi": " ".join(MPI.Get_library_version().splitlines()[0].split()),
        "rounds": options.rounds,
        "alpha": float(f"{latency:.3g}"),  # seconds for a message
        "beta": float(f"{(large - latency) / LARGE:.3g}"),  # seconds for a byte
        "results": results,
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def main():
    options = parse()
    if options.on_a_host:
        measure(options)
    else:
        start(options)


if __name__ == "__main__":
    main()
