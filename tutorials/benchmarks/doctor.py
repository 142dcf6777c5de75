"""Counts how often `easyddl doctor` names the one bad link among some hosts.

    python tutorials/benchmarks/doctor.py
    python tutorials/benchmarks/doctor.py --runs 5 --hosts 4 --seed 3

Each run takes a random pair of hosts and a random fault: the rate halved, 20 ms of delay or 2% of
loss, from one to the other or both ways. As many runs have no fault, and must find none. The hosts
are network namespaces joined at 1 Gbit/s, which needs root and Debian's iproute2.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "hosts")]

import bad_network  # noqa: E402
import network  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="with a fault, and as many without")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--mbit", type=int, default=1000, help="0 for as fast as it can be")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=["faulty", "clean", "host"],
                        default=["faulty", "clean"])  # fmt: skip
    return parser.parse_args()


def choose(net, kind):
    """Returns the fault, the ways that have it, and the hosts that the report has to name."""
    fault = random.choice(bad_network.FAULTS)
    a, b = random.sample(net.hosts, 2)
    if kind == "clean":
        return fault, [], []
    if kind == "host":
        return fault, [(a, None)], [(a,)]
    return fault, [(a, b), (b, a)][: random.randint(1, 2)], [tuple(sorted((a, b)))]


def main():
    options = parse()
    random.seed(options.seed)
    right, times = {kind: 0 for kind in options.kinds}, {kind: [] for kind in options.kinds}
    for run in range(options.runs):
        for kind in options.kinds:
            with network.Network(options.hosts, mbit=options.mbit or None) as net:
                fault, ways, expected = choose(net, kind)
                with bad_network.spoiled(net, fault, ways, options.mbit):
                    start = time.monotonic()
                    _, report = bad_network.doctor(net)
                    seconds = time.monotonic() - start
            what = f"{fault} from {' and from '.join(f'{a} to {b}' for a, b in ways)}" * bool(ways)
            bad = [finding for finding in report["findings"] if finding["level"] != "fine"]
            is_right = bad_network.accused(report) == expected and len(bad) == len(expected)
            right[kind] += is_right
            times[kind].append(seconds)
            print(f"{run:>3} {kind:<7} {seconds:5.1f} s  {'ok' if is_right else 'WRONG'}  {what}",
                  flush=True)  # fmt: skip
            for finding in bad if not is_right or kind != "clean" else ():
                print(f"      {finding['level']}: {finding['message']}")
    for kind in options.kinds:
        print(f"{kind}: {right[kind]} of {options.runs} right, "
              f"median {statistics.median(times[kind]):.1f} s, "
              f"longest {max(times[kind]):.1f} s")  # fmt: skip
    return 0 if all(count == options.runs for count in right.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
