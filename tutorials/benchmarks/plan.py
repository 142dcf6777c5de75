"""Measures what a plan gains between hosts whose racks have a slow link.

    python tutorials/benchmarks/plan.py
    python tutorials/benchmarks/plan.py --racks x,y,x,y --uplink 200 --tries 10 --rounds 5
    python tutorials/benchmarks/plan.py --racks a/w,b/y,a/x,b/z,a/w,b/y,a/x,b/z \\
        --uplink 200 500 --ranks 1
    python tutorials/benchmarks/plan.py --racks core,core,core,core --mbit 1000 200 1000 1000
    python tutorials/benchmarks/plan.py --racks x,core,y,x,core,y --uplink 200

The hosts are network namespaces joined at 1 Gbit/s, which needs root and Debian's iproute2. A rack
may be `aisle/rack`, or `core` for the switch that joins the groups.
`easyddl plan` measures them `--tries` times, without knowing the racks. Then jobs of each kind, in
turn, measure an allreduce of 16 MB: with the plan, without it, with a ring of hosts, with a flat
ring of all ranks, and by MPI itself. The
last column is the time that `easyddl plan` has computed, over the median.
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

BYTES = 16_000_000
LIMIT = 300  # seconds for a job


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--racks", default="x,y,x,y", help="the rack of each host")
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000], help="of all hosts or each")
    parser.add_argument("--uplink", type=int, nargs="+", default=[200],
                        help="Mbit/s between groups, the outermost first; 0: no limit")  # fmt: skip
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--tries", type=int, default=1, help="of `easyddl plan`")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind")
    parser.add_argument("--repeats", type=int, default=5, help="allreduces in a job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def job(kind, repeats):
    """Run on each rank: the times of the slowest rank, and what leaves the racks."""
    import without_keras  # noqa: F401  (first)

    # isort: split
    import numpy as np
    from mpi4py import MPI

    import easyddl as ddl
    from easyddl.runtime import world

    mine = np.full(BYTES // 4, ddl.rank() + 1.0, np.float32)
    result = np.empty_like(mine)
    comm, engine = MPI.COMM_WORLD, world.engine()
    bench, scratch = engine.core.Bench(engine.world, engine.communicator), np.empty_like(mine)
    uplinks = json.loads(os.environ["EASYDDL_TEST_UPLINKS"])
    times, sent = [], []
    for _ in range(repeats + 1):  # the first one makes connections
        before = sum(network.bytes_sent(*each) for each in uplinks.values())
        comm.Barrier()
        start = time.perf_counter()
        if kind == "mpi":
            comm.Allreduce(mine, result)
        elif kind == "ring":
            bench.time("ring", mine, result, scratch, 1)
        else:
            result = ddl.allreduce(mine, "sum")
        comm.Barrier()
        times.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        sent.append(sum(network.bytes_sent(*each) for each in uplinks.values()) - before)
        assert (result == comm.size * (comm.size + 1) / 2).all()
    if comm.rank == 0:
        print("measured", json.dumps([times[1:], sent[1:]]), flush=True)


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
    how = ["-H", hosts, "--rsh", net.rsh, "--start-timeout", "120"]
    found = 0
    for _ in range(options.tries):
        path.unlink(missing_ok=True)
        done = on_first(net, "-m", "easyddl", "plan", *how, "-o", path)
        found += all(f": {' '.join(each)}, " in done.stdout for each in members.values())
    return found, done.stdout


def predicted(output):
    """Returns the seconds that `easyddl plan` has computed, by the kind of a job."""
    found = re.findall(r"^(\S.*?) {2,}([\d.]+) (us|ms|s)\b", output, re.MULTILINE)
    scales = {"us": 1e-6, "ms": 1e-3, "s": 1}
    return {
        name.removesuffix(", without a plan"): float(value) * scales[unit]
        for name, value, unit in found
    }


def measure(net, kind, options, env):
    env = {
        "PYTHONPATH": mpi.environment()["PYTHONPATH"],
        "EASYDDL_TEST_UPLINKS": json.dumps(net.uplinks()),
        **env,
    }
    arguments = [__file__, "--job", kind, "--repeats", options.repeats]
    done = mpi.run_command(net.mpirun(options.ranks, arguments), net.environment(env), LIMIT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    assert done.returncode == 0 and lines, done.stdout
    return json.loads(lines[0].partition(" ")[2])


def main(options):
    count = len(options.racks.split(","))
    with (
        tempfile.TemporaryDirectory() as folder,
        network.Network(
            count,
            options.mbit * (count if len(options.mbit) == 1 else 1),
            options.racks,
            [each or None for each in options.uplink],
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
        times, sent = {}, {}
        for _ in range(options.rounds):
            for name, (kind, env) in kinds.items():
                measured = measure(net, kind, options, env)
                times.setdefault(name, []).extend(measured[0])
                sent.setdefault(name, []).extend(measured[1])
                print(f"{name}: {[round(each, 2) for each in measured[0]]}", flush=True)
    least = statistics.median(times.get("planned", times["hosts as listed"]))
    computed = predicted(output)
    print(
        f"\n{'':24} {'median':>8} {'least':>8} {'ratio':>6} {'MB that leave racks':>20} "
        f"{'computed':>9}"
    )
    for name, each in times.items():
        middle = statistics.median(each)
        print(
            f"{name:24} {middle:6.2f} s {min(each):6.2f} s {middle / least:6.2f} "
            f"{statistics.median(sent[name]) / 1e6:20.1f} "
            + (f"{computed[name] / middle:9.2f}" if name in computed else "")
        )


if __name__ == "__main__":
    arguments = parse()
    if arguments.job:
        job(arguments.job, arguments.repeats)
    else:
        main(arguments)
