"""Measures what a plan gains between hosts whose racks have a slow link.

    python tutorials/benchmarks/plan.py
    python tutorials/benchmarks/plan.py --racks x,y,x,y --uplink 200 --tries 10 --rounds 5
    python tutorials/benchmarks/plan.py --racks a/w,b/y,a/x,b/z,a/w,b/y,a/x,b/z \\
        --uplink 200 500 --ranks 1
    python tutorials/benchmarks/plan.py --racks core,core,core,core --mbit 1000 200 1000 1000
    python tutorials/benchmarks/plan.py --racks x,core,y,x,core,y --uplink 200
    python tutorials/benchmarks/plan.py --racks x,y,x,y,x,y --mbit 100 --uplink 100 \\
        --sizes 1000 1000000 16000000
    python tutorials/benchmarks/plan.py --racks x,y,x,y --mbit 100 --uplink 80 --delayed

The hosts are network namespaces joined at 1 Gbit/s, which needs root and Debian's iproute2. A rack
may be `aisle/rack`, or `core` for the switch that joins the groups.
With `--delayed`, what leaves a group of hosts takes 20 ms.

`easyddl plan` measures them `--tries` times, without knowing the racks. Then jobs of each kind, in
turn, measure an allreduce of each size, 16 MB where none is given: with the plan, without it, with
a ring of hosts, with a flat ring of all ranks, and by MPI itself. Small arrays are reduced several
times in a row. The last column is the time that `easyddl plan` has computed, over the median.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "hosts")]

import mpi  # noqa: E402
import network  # noqa: E402

IN_A_ROW = 2_000_000  # bytes; at most 20 allreduces
LIMIT = 300  # seconds for a job
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--racks", default="x,y,x,y", help="the rack of each host")
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000], help="of all hosts or each")
    parser.add_argument("--uplink", type=int, nargs="+", default=[200],
                        help="Mbit/s between groups, the outermost first; 0: no limit")  # fmt: skip
    parser.add_argument("--delayed", action="store_true", help="what leaves a group takes 20 ms")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16_000_000],
                        help="bytes: 16 MB, or a power of ten from 1 kB to 100 MB")  # fmt: skip
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--tries", type=int, default=1, help="of `easyddl plan`")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind")
    parser.add_argument("--repeats", type=int, default=5, help="allreduces in a job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def job(kind, sizes, repeats):
    """Run on each rank: by size, the times of the slowest rank, and what leaves the racks."""
    import without_keras  # noqa: F401  (first)

    # isort: split
    import numpy as np
    from mpi4py import MPI

    import easyddl as ddl
    from easyddl.runtime import world

    comm, engine = MPI.COMM_WORLD, world.engine()
    bench = engine.core.Bench(engine.world, engine.communicator)
    uplinks = json.loads(os.environ["EASYDDL_TEST_UPLINKS"])

    def sent_by_now():
        return sum(network.bytes_sent(*each) for each in uplinks.values())

    def measured(size):
        mine = np.full(size // 4, ddl.rank() + 1.0, np.float32)
        result, scratch = np.empty_like(mine), np.empty_like(mine)
        count = max(1, min(20, IN_A_ROW // size))
        before = sent_by_now()
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(count):
            if kind == "mpi":
                comm.Allreduce(mine, result)
            elif kind == "ring":
                bench.time("ring", mine, result, scratch, 1)
            else:
                result = ddl.allreduce(mine, "sum")
        comm.Barrier()
        took = comm.allreduce(time.perf_counter() - start, MPI.MAX)
        assert (result == comm.size * (comm.size + 1) / 2).all()
        return took / count, (sent_by_now() - before) / count

    for size in sizes:
        _, *each = [measured(size) for _ in range(repeats + 1)]  # the first one makes connections
        if comm.rank == 0:
            print("measured", json.dumps([size, each]), flush=True)


def on_first(net, *arguments, env=None):
    line = net.on(net.hosts[0], [sys.executable, *arguments])
    return mpi.run_command(line, net.environment(env), LIMIT)


def find_plans(net, options, path):
    """Returns how often all racks and aisles are found; and the output of the last try."""
    members = {}
    for host, rack in zip(net.hosts, options.racks.split(","), strict=True):
        parts = [part for part in rack.split("/") if part != "core"]
        for depth in range(len(parts)):
            members.setdefault(tuple(parts[: depth + 1]), []).append(host)
    hosts = ",".join(f"{host}:{options.ranks}" for host in net.hosts)
    how = ["-H", hosts, "--rsh", net.rsh, "--start-timeout", "120", "--explain"]
    found = 0
    for _ in range(options.tries):
        path.unlink(missing_ok=True)
        done = on_first(net, "-m", "easyddl", "plan", *how, "-o", path)
        found += all(f": {' '.join(each)}, " in done.stdout for each in members.values())
    return found, done.stdout


def predicted(output):
    """Returns the seconds that `easyddl plan` has computed, by the size and the kind of a job."""
    head = r"^(hosts as listed.*|planned) {2,}(\S+) (us|µs|ms|s)\b"
    found = {
        (16_000_000, name.strip().removesuffix(", without a plan")): float(value) * UNITS[unit]
        for name, value, unit in re.findall(head, output, re.MULTILINE)
    }
    _, _, rows = output.partition("Times by size:")
    for row in rows.partition("Times of ")[0].splitlines()[2:]:
        size, *times = (float(a) * UNITS[b] for a, b in zip(*[iter(row.split())] * 2, strict=True))
        for name, each in zip(("hosts as listed, ring", "hosts as listed", "planned"), times,
                              strict=True):  # fmt: skip
            found[round(size), name] = each
    return found


def measure(net, kind, options, env):
    env = {
        "PYTHONPATH": mpi.environment()["PYTHONPATH"],
        "EASYDDL_TEST_UPLINKS": json.dumps(net.uplinks()),
        **env,
    }
    arguments = [__file__, "--job", kind, "--repeats", options.repeats, "--sizes", *options.sizes]
    done = mpi.run_command(net.mpirun(options.ranks, arguments), net.environment(env), LIMIT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    assert done.returncode == 0 and lines, done.stdout
    return [json.loads(line.partition(" ")[2]) for line in lines]


def main(options):
    count = len(options.racks.split(","))
    with (
        tempfile.TemporaryDirectory() as folder,
        network.Network(
            count,
            options.mbit * (count if len(options.mbit) == 1 else 1),
            options.racks,
            [each or None for each in options.uplink],
            options.delayed,
        ) as net,
    ):
        path = pathlib.Path(folder, "plan.toml")
        found, output = find_plans(net, options, path)
        print(output)
        print(f"All racks are found in {found} of {options.tries} tries.", flush=True)
        kinds = {
            "hosts as listed, ring": ("ddl", {"EASYDDL_ALGORITHM": "ring"}),
            "hosts as listed": ("ddl", {}),
            "a flat ring of ranks": ("ring", {}),
            "MPI's own allreduce": ("mpi", {}),
        }
        if path.exists():
            kinds["planned"] = ("ddl", {"EASYDDL_PLAN": str(path)})
        measured = {}  # lists of seconds and bytes, by size and kind
        for _ in range(options.rounds):
            for name, (kind, env) in kinds.items():
                for size, each in measure(net, kind, options, env):
                    measured.setdefault((size, name), []).extend(each)
                    print(f"{name}, {size}: {[round(took, 4) for took, _ in each]}", flush=True)
    for size in options.sizes:
        show(size, {name: measured[size, name] for name in kinds}, predicted(output))


def show(size, measured, computed):
    """Prints the medians of the kinds of jobs for a size, over that of the plan."""
    times = {name: [took for took, _ in each] for name, each in measured.items()}
    least = statistics.median(times.get("planned", times["hosts as listed"]))
    print(
        f"\n{size:<24,d} {'median':>10} {'least':>10} {'ratio':>6} {'MB that leave racks':>20} "
        f"{'computed':>9}"
    )
    for name, each in times.items():
        middle, sent = statistics.median(each), statistics.median(s for _, s in measured[name])
        print(
            f"{name:24} {middle * 1e3:7.2f} ms {min(each) * 1e3:7.2f} ms {middle / least:6.2f} "
            f"{sent / 1e6:20.1f} "
            + (f"{computed[size, name] / middle:9.2f}" if (size, name) in computed else "")
        )


if __name__ == "__main__":
    arguments = parse()
    if arguments.job:
        job(arguments.job, arguments.sizes, arguments.repeats)
    else:
        main(arguments)
