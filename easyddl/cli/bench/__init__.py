"""Times allreduce on these ranks: easyddl's, MPI's, a flat ring and gloo's.

Start the command under `mpirun`, like a training job. Every algorithm sums float32 numbers out of
place. Its result is first checked against NumPy. The algorithms take turns, round by round. The
time of a round is that of its slowest rank. The table shows the median, the best and the worst
round. Two lower bounds are measured in the same run: the time to copy the data once into other
memory and once out of it, on all ranks at once; and, with several hosts, the time to send the data
that must cross the network, from all hosts at once.
"""

import argparse
import functools
import re

from easyddl.cli import _numbers, _output_files

SUMMARY = "time allreduce on these ranks, next to MPI's and the bounds of memory and network"

ALGORITHMS = ("easyddl", "mpi", "ring", "gloo")
WIRE_DTYPES = ("bfloat16", "float16")
BOUNDS = ("copy", "wire")
_SIZES = "4 1Ki 16Ki 256Ki 4Mi 32Mi 100M"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_size(text):
    """Converts a text such as `"64Ki"`, `"100M"` or `"4096"` to a number of bytes."""
    found = re.fullmatch(r"(\d+)([kmg]?i?)b?", text.strip().lower())
    if not found or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(
            "must be a number of bytes, which may end in k, M or G (powers of 1000) or in Ki, Mi "
            f"or Gi (powers of 1024), for example 100M. Received: {text!r}"
        )
    size = int(found[1]) * _UNITS[found[2]]
    if size == 0 or size % 4:
        raise argparse.ArgumentTypeError(
            f"must be a multiple of 4 bytes, the size of a float32, and not 0. Received: {text!r}"
        )
    return size


def add_arguments(parser):
    """Adds the arguments of `easyddl bench`."""
    parser.add_argument(
        "--sizes",
        type=parse_size,
        nargs="+",
        default=[parse_size(size) for size in _SIZES.split()],
        metavar="BYTES",
        help=f"bytes of float32 data on each rank, for example 64Ki or 100M (default: {_SIZES})",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        choices=ALGORITHMS,
        default=list(ALGORITHMS),
        metavar="NAME",
        help=f"one or more of {', '.join(ALGORITHMS)} (default: all; gloo needs torch)",
    )
    parser.add_argument(
        "--rounds",
        type=_numbers.positive,
        default=15,
        metavar="N",
        help="number of rounds in which each algorithm is timed (default: 15)",
    )
    parser.add_argument(
        "--wire-dtype",
        choices=WIRE_DTYPES,
        help="also time easyddl with data that is sent to other hosts in this dtype",
    )
    parser.add_argument("--busy", action="store_true", help="keep every core busy with other work")
    _output_files.add_arguments(parser)


def run(options):
    """Times the algorithms and shows the result on rank 0.

    Args:
        options: Namespace. The parsed arguments.

    Returns:
        The exit status.
    """
    from easyddl.cli.bench import bench_report, object_collectives, timing
    from easyddl.doctor import software
    from easyddl.runtime import world

    # Only rank 0 writes files. It broadcasts its check, so that all ranks end with the same error.
    problem = object_collectives.broadcast(
        _output_files.problem(options) if world.is_root() else None
    )
    problem = problem or timing.memory_missing(max(options.sizes))
    if problem is not None:
        options.fail(problem)

    algorithms = list(dict.fromkeys(options.algorithms))
    if options.wire_dtype:
        algorithms.append(options.wire_dtype)
    with timing.Bench(algorithms) as benchmark:
        results = {
            "ranks": world.size(),
            "hosts": world.num_nodes(),
            "cores": len(timing.cores()),
            "busy": options.busy,
            "mpi": software.mpi_name(world.engine().core.mpi_library_version()),
            "dtype": "float32",
            "op": "sum",
            "algorithms": benchmark.algorithms,
            "bounds": benchmark.bounds,
            "skipped": benchmark.skipped,
            "results": [],
        }
        with timing.busy_cores(options.busy):
            _measure(benchmark, results, options)
    if world.is_root():
        plot = functools.partial(bench_report.plot, results)
        _output_files.write(options, results, plot)
    return 0


def _measure(benchmark, results, options):
    """Fills in the results size by size, and shows each size as soon as it is measured."""
    from tqdm import tqdm

    from easyddl.cli.bench import bench_report
    from easyddl.runtime import console, world

    shows = world.is_root()
    table = bench_report.Table(results["algorithms"])
    bar = tqdm(
        total=len(options.sizes) * options.rounds * len(benchmark.timed()),
        disable=not (shows and console.is_watched()),
        leave=False,
        unit="round",
    )

    def say(line):
        if shows and options.json != "-":
            bar.clear()
            print(line, flush=True)

    with bar:
        say(bench_report.title(results))
        for name, reason in results["skipped"].items():
            say(f"{name} is left out: {reason}")
        say(table.header())
        for size in options.sizes:
            bar.set_description(bench_report.format_bytes(size))
            result = benchmark.compare(size, options.rounds, advance=lambda name: bar.update())
            results["results"].append(result)
            say(table.rows(result))
