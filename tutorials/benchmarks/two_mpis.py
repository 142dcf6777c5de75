"""Times easyddl's allreduce beside those of MPICH and Open MPI, a flat ring, and gloo.

    python tutorials/benchmarks/two_mpis.py
    python tutorials/benchmarks/two_mpis.py --torch --ranks 2 --sizes 1Ki 100M

Two MPIs never share an environment: this makes one for each, installs easyddl in both, and
runs `easyddl bench` in one and the other in turns. The table holds medians over the rounds of
all runs. Its ratio is the best time of the others over easyddl's; of easyddl's two times, one in
each environment, which are those of the same code on one host, it takes the geometric mean. The
ring and gloo have one column each, with the rounds of both environments.

It needs an MPI nowhere else, but a C++ compiler and a package index.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv
from statistics import geometric_mean, median

ROOT = pathlib.Path(__file__).resolve().parents[2]
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], metavar="N")
    parser.add_argument("--sizes", nargs="+", default=["1Ki", "64Ki", "4Mi", "100M"],
                        metavar="BYTES", help="as easyddl bench takes them")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=10, help="in each run")
    parser.add_argument("--runs", type=int, default=3, help="in each environment")
    parser.add_argument("--busy", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--torch", action="store_true", help="install torch too, for gloo")
    parser.add_argument("--environments", metavar="DIRECTORY",
                        help="where to make them, and leave them for the next time")  # fmt: skip
    return parser.parse_args()


def clean_environment():
    """Without what would lead one environment to another's packages or MPI."""
    names = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MPICXX", "CMAKE_ARGS")
    return {name: value for name, value in os.environ.items() if name not in names}


def make_environment(folder, mpi, with_torch):
    """A virtual environment with an MPI, and after it easyddl; with what is new, if it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [[mpi], [f"{ROOT}[tensorflow]"], *([["torch"]] if with_torch else [])]
    # The sources may have changed since: pip would not see it by their version.
    wanted.append(["--force-reinstall", "--no-deps", "--no-cache-dir", str(ROOT)])
    for packages in wanted:
        subprocess.run([*pip, *packages], check=True, env=clean_environment(), cwd=folder)


def run(folder, mpi, ranks, options, work):
    """The report of one `easyddl bench`."""
    flags = []
    if mpi == "openmpi":
        flags = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    report = work / "report.json"
    line = [folder / "bin" / "mpirun", *flags, "-np", str(ranks), folder / "bin" / "easyddl"]
    line += ["bench", "--sizes", *options.sizes, "--rounds", str(options.rounds)]
    line += ["--algorithms", "easyddl", "mpi", "ring", *(["gloo"] if options.torch else [])]
    line += ["--json", str(report), *(["--busy"] if options.busy else [])]
    done = subprocess.run(
        line,
        cwd=work,
        env={**clean_environment(), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, line))} ended with {done.returncode}:\n{done.stdout}")
    return json.loads(report.read_text())


def medians(reports):
    """The median time, by (ranks, bytes) and then by (MPI, algorithm); the MPI may be "both".

    Args:
        reports: Pairs of an MPI's name and a report, one a run.
    """
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    for mpi, report in reports:
        for result in report["results"]:
            of_size = times[report["ranks"], result["bytes"]]
            for algorithm in report["algorithms"]:
                where = mpi if algorithm in ("easyddl", "mpi") else "both"
                of_size[where, algorithm] += result["rounds"][algorithm]
    return {
        key: {way: median(rounds) for way, rounds in ways.items()} for key, ways in times.items()
    }


def table(reports):
    """The lines of the table."""
    found = medians(reports)
    columns = [(mpi, way) for way in ("easyddl", "mpi") for mpi in MPIS]
    columns += [("both", way) for way in ("ring", "gloo")]
    columns = [column for column in columns if any(column in ways for ways in found.values())]
    names = [
        {"easyddl": f"easyddl ({MPIS.get(mpi)})", "mpi": MPIS.get(mpi)}.get(way, way)
        for mpi, way in columns
    ]
    head = ["ranks", "bytes", *(f"{name} us" for name in names), "best other/easyddl"]
    lines, ratios = [], []
    for (ranks, size), ways in sorted(found.items()):
        ours = geometric_mean(ways[mpi, "easyddl"] for mpi in MPIS)
        best = min(time for (_, way), time in ways.items() if way != "easyddl")
        ratios.append(best / ours)
        cells = [f"{ways[each] * 1e6:.1f}" if each in ways else "-" for each in columns]
        lines.append([str(ranks), str(size), *cells, f"{ratios[-1]:.2f}"])
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    text = ["  ".join(map(str.rjust, line, widths)) for line in (head, *lines)]
    return [*text, f"geometric mean of the ratios: {geometric_mean(ratios):.2f}"]


def main():
    options = parse()
    reports = []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        place = pathlib.Path(options.environments or work).resolve()
        place.mkdir(parents=True, exist_ok=True)
        for mpi in MPIS:
            make_environment(place / mpi, mpi, options.torch)
        for number in range(options.runs):
            for ranks in options.ranks:
                for mpi in MPIS:
                    print(f"run {number + 1} of {options.runs}: {ranks} ranks, {MPIS[mpi]}",
                          file=sys.stderr, flush=True)  # fmt: skip
                    reports.append((mpi, run(place / mpi, mpi, ranks, options, work)))
    kinds = " and ".join(dict.fromkeys(report["mpi"] for _, report in reports))
    load = "every core busy" if options.busy else "nothing else was started"
    print(f"{kinds}, {reports[0][1]['cores']} cores, {load}")
    for mpi, reason in {(m, why) for m, each in reports for why in each["skipped"].values()}:
        print(f"gloo is left out with {MPIS[mpi]}: {reason}")
    print("\n".join(table(reports)))


if __name__ == "__main__":
    main()
