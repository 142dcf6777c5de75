"""How long `easyddl run` and `easyddl.Ranks` take to start, beside plain `mpirun`.

    python tests/benchmarks/start.py
    python tests/benchmarks/start.py --ranks 8 --rounds 5 tutorials/digits.py

Without a script each rank does nothing. `mpirun` and `easyddl run` take turns.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import easyddl

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "support")]
import mpi  # noqa: E402 - after where it lies has been told


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("script", nargs="*", default=["-c", "pass"])
    return parser.parse_args()


def seconds_of(command):
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout)
    return time.monotonic() - begin


def compare(ranks, rounds, script):
    """Prints the median of each way to start a program."""
    program = [sys.executable, *script]
    easyddl_run = [sys.executable, "-m", "easyddl", "run", "-np", str(ranks)]
    ways = {"mpirun": mpi.command(ranks, program), "easyddl run": [*easyddl_run, *program]}
    seconds = {way: [] for way in ways}
    for _ in range(rounds):
        for way, command in ways.items():
            seconds[way].append(seconds_of(command))
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    told = ", ".join(f"{way} {each:.2f} s" for way, each in medians.items())
    print(f"{ranks} ranks: {told}", flush=True)


def measure_ranks(ranks, rounds):
    """Prints how long it takes to make `Ranks`, and to call a function that does nothing."""
    starts, calls = [], []
    for _ in range(rounds):
        begin = time.monotonic()
        with easyddl.Ranks(np=ranks) as made:
            starts.append(time.monotonic() - begin)
            made.run(int)
            for _ in range(100):
                begin = time.monotonic()
                made.run(int)
                calls.append(time.monotonic() - begin)
    start, call = statistics.median(starts), statistics.median(calls)
    print(f"{ranks} ranks: Ranks {start:.2f} s, a call {1000 * call:.2f} ms", flush=True)


def main():
    options = parse()
    for ranks in options.ranks:
        compare(ranks, options.rounds, options.script)
        if options.script == ["-c", "pass"]:
            measure_ranks(ranks, options.rounds)


if __name__ == "__main__":
    main()
