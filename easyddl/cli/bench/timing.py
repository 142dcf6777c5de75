"""Times allreduce beside other ways to do the same, and beside what bounds them."""

import contextlib
import os
import statistics
import subprocess
import sys

import numpy as np

from easyddl.cli.bench import gloo
from easyddl.collectives import objects
from easyddl.runtime import world

ALGORITHMS = ("easyddl", "mpi", "ring", "gloo")
BOUNDS = ("copy", "wire")

# A round of one algorithm takes so many seconds, where a call is short: some time slices, so
# that each pays for its own waiting.
_ROUND_SECONDS = 0.05
_MOST_CALLS = 100_000

# Arrays of the data's size that a rank holds: the input, the result and other memory.
ARRAYS = 3

# The data repeats after so many elements: a prime, so that no two chunks, shards or pages of
# it are equal and a part that lands in the wrong place is found.
_PERIOD = 4099

_BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


class Bench:
    """The ways to sum an array over all ranks, and to time them side by side.

    It is collective, as are its methods. Use it in a `with` statement.

    Args:
        algorithms: List of names out of `ALGORITHMS`.

    Attributes:
        algorithms: List of those that can be had here.
        bounds: List of names out of `BOUNDS`, of those that there are here.
        skipped: Dictionary. Why another one is not among them, by name.

    Example:
    ```python
    with Bench(["easyddl", "mpi"]) as bench:
        print(bench.compare(100_000_000, rounds=15)["seconds"])
    ```
    """

    def __init__(self, algorithms):
        engine = world.engine()
        self._core = engine.core.Bench(engine.world, engine.channel)
        self._gloo = None
        self.skipped = {}
        if "gloo" in algorithms:
            self._gloo, reason = gloo.connect()
            if self._gloo is None:
                self.skipped["gloo"] = reason
        self.algorithms = [name for name in algorithms if name not in self.skipped]
        self.bounds = ["copy"]
        if world.num_nodes() > 1:
            self.bounds.append("wire")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._gloo is not None:
            self._gloo.close()

    def ways(self):
        """All that `compare` times: the algorithms and the bounds, some of these in two ways."""
        # A single stream may not fill a fast network, and many may get in each other's way.
        wires = ["wire_of_one", "wire_of_all"] if "wire" in self.bounds else []
        return [*self.algorithms, "copy", *wires]

    def compare(self, size, rounds, advance=lambda way: None):
        """Times all ways on data of one size, in rounds in which they take turns.

        A round's time is that of its slowest rank.

        Args:
            size: Integer. Bytes of float32 data on each rank.
            rounds: Integer. How often each way is timed.
            advance: Function that is called with the name of a way after each of its rounds.

        Returns:
            Dictionary of `bytes`; `seconds`, the median time of a call by algorithm; `bounds`,
            likewise, `None` where there is none; `least` and `worst`, the times of the best and of
            the worst round by algorithm and bound; `rounds`, the times of all rounds by way; and
            `calls`, how many calls a round had.

        Raises:
            RuntimeError: On all ranks, if an algorithm gives a wrong sum on one of them.
        """
        data, expected = _data(size)
        ways = self.ways()
        calls = {}
        for way in ways:
            data[1].fill(np.nan)
            self._time(way, data, 1)
            if way in self.algorithms:
                _check(way, size, data[1], expected)
            calls[way] = self._calls_in_a_round(way, data)
        times = {way: [] for way in ways}
        for number in range(rounds):
            first = number % len(ways)  # so that no way always follows the same other
            for way in ways[first:] + ways[:first]:
                times[way].append(self._time(way, data, calls[way]))
                advance(way)
        medians = {way: statistics.median(found) for way, found in times.items()}
        wires = [way for way in ways if way.startswith("wire")]
        shown = {name: name for name in (*self.algorithms, "copy")}
        if wires:
            shown["wire"] = min(wires, key=medians.get)
        return {
            "bytes": size,
            "seconds": {way: medians[way] for way in self.algorithms},
            "bounds": {name: medians[shown[name]] if name in shown else None for name in BOUNDS},
            "least": {name: min(times[way]) for name, way in shown.items()},
            "worst": {name: max(times[way]) for name, way in shown.items()},
            "rounds": times,
            "calls": calls,
        }

    def _time(self, way, data, calls):
        """The seconds that a call took on the slowest rank."""
        if way == "gloo":
            seconds = self._gloo.time(data[0], data[1], calls)
        else:
            seconds = self._core.time(way, *data, calls)
        return max(_of_all_ranks(int(seconds * 1e12))) / 1e12

    def _calls_in_a_round(self, way, data):
        seconds = self._time(way, data, 1)
        if seconds * 10 < _ROUND_SECONDS:
            seconds = self._time(way, data, 10)
        return max(1, min(_MOST_CALLS, int(_ROUND_SECONDS / max(seconds, 1e-9))))


def _of_all_ranks(value):
    channel = world.engine().channel
    return channel.gather_values(value, world.signature("a benchmark's time"))


def _data(size):
    """This rank's input, memory for the result, other memory; and the sum over all ranks.

    The numbers are small integers, so that their sum is exact in any order.
    """
    count = size // np.dtype(np.float32).itemsize
    periods = [
        np.random.default_rng(rank).integers(-8, 9, _PERIOD).astype(np.float32)
        for rank in range(world.size())
    ]
    data = [np.resize(periods[world.rank()], count)]
    data += [np.zeros(count, np.float32) for _ in range(ARRAYS - 1)]
    return data, np.sum(periods, axis=0)


def _check(way, size, result, period):
    """An error on all ranks unless `result` is `period` over and over, on each."""
    whole = len(result) // _PERIOD * _PERIOD
    right = bool((result[:whole].reshape(-1, _PERIOD) == period).all())
    right = right and bool((result[whole:] == period[: len(result) - whole]).all())
    wrong = [rank for rank, is_right in enumerate(_of_all_ranks(int(right))) if not is_right]
    if wrong:
        raise RuntimeError(
            f"The sum of {size} bytes by {way} is wrong on rank(s) {', '.join(map(str, wrong))}."
        )


def memory_missing(size):
    """Why some host's memory cannot hold all ranks' arrays of `size` bytes; `None` if it can."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = ARRAYS * size * world.local_size()
    for host, needs, has in objects.allgather_object((world.host(), needed, total)):
        if needs > has:
            return (
                f"{size} bytes need {ARRAYS} arrays on each rank, together {needs / 1e9:.1f} GB "
                f"on host {host}, which has {has / 1e9:.1f} GB"
            )
    return None


def cores():
    """The cores that this host's ranks may use, as a set. Collective."""
    # The union, because a launcher may bind each rank to cores of its own.
    everyones = objects.allgather_object((world.host(), os.sched_getaffinity(0)))
    return set().union(*(theirs for host, theirs in everyones if host == world.host()))


@contextlib.contextmanager
def busy_cores(is_busy=True):
    """Keeps every core of all hosts busy with other work meanwhile. Collective.

    Args:
        is_busy: Boolean. With `False` it does nothing.
    """
    burners = []
    try:
        host_cores = cores() if is_busy else ()
        if world.local_rank() == 0:
            for _ in host_cores:
                burners.append(subprocess.Popen([sys.executable, "-S", "-c", _BURN]))
                os.sched_setaffinity(burners[-1].pid, host_cores)
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
