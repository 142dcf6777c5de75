"""Times allreduce algorithms and their lower bounds."""

import contextlib
import os
import statistics
import subprocess
import sys

import numpy as np

from easyddl.cli.bench import BOUNDS, WIRE_DTYPES, gloo, object_collectives
from easyddl.runtime import world

# The duration of a round in seconds, if a call is shorter. It spans several time slices of the
# scheduler, so that the cost of waiting falls on the algorithm that waits.
_ROUND_SECONDS = 0.05
_MOST_CALLS = 100_000

# The number of arrays that a rank holds: the input, the result and memory to copy to.
ARRAYS = 3

# The period of the data, in elements. It is a prime, so that no two chunks, shards or pages are
# equal, and the check finds a segment in the wrong place.
_PERIOD = 4099

_BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


class Bench:
    """Times the algorithms that sum an array over all ranks.

    The constructor and the methods are collective. Use it in a `with` statement.

    Args:
        algorithms: List of names out of `ALGORITHMS` and `WIRE_DTYPES`. The latter are easyddl with
            data that is sent to other hosts in this dtype.

    Attributes:
        algorithms: List of the names of the algorithms that work here.
        bounds: List of names out of `BOUNDS`: the bounds that can be measured here.
        skipped: Dictionary from the name of each other algorithm to the reason.

    Example:
    ```python
    with Bench(["easyddl", "mpi"]) as bench:
        print(bench.compare(100_000_000, rounds=15)["seconds"])
    ```
    """

    def __init__(self, algorithms):
        engine = world.engine()
        self._core = engine.core.Bench(engine.world, engine.communicator)
        self._gloo = None
        self.skipped = {}
        if "gloo" in algorithms:
            self._gloo, reason = gloo.connect()
            if self._gloo is None:
                self.skipped["gloo"] = reason
        if world.num_nodes() == 1:
            wires = set(algorithms) & set(WIRE_DTYPES)
            self.skipped.update(dict.fromkeys(wires, "all ranks are on one host"))
        self.algorithms = [name for name in algorithms if name not in self.skipped]
        self.bounds = list(BOUNDS) if world.num_nodes() > 1 else ["copy"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._gloo is not None:
            self._gloo.close()

    def timed(self):
        """Returns the names that `compare` times: the algorithms and variants of the bounds."""
        # A single stream may not saturate a fast network, and many streams may disturb each other.
        wires = ["wire_of_one", "wire_of_all"] if "wire" in self.bounds else []
        return [*self.algorithms, "copy", *wires]

    def compare(self, size, rounds, advance=lambda name: None):
        """Times all algorithms and bounds on data of one size, in rounds in which they take turns.

        The time of a round is that of its slowest rank.

        Args:
            size: Integer. Bytes of float32 data on each rank.
            rounds: Integer. The number of rounds.
            advance: Function that is called with a name after each round of it.

        Returns:
            Dictionary with the following entries. All times are in seconds per call.

            - `bytes`: the size.
            - `seconds`: the median time by algorithm.
            - `bounds`: the median time by bound; `None` for a bound that was not measured.
            - `least`, `worst`: the times of the best and the worst round, by algorithm and bound.
            - `rounds`: the times of all rounds, by name.
            - `calls`: the number of calls in a round, by name.

        Raises:
            RuntimeError: On all ranks, if an algorithm computes a wrong sum on one of them.
        """
        data, expected = _data(size)
        names = self.timed()
        calls = {}
        for name in names:
            data[1].fill(np.nan)
            self._time(name, data, 1)
            if name in self.algorithms:
                _check(name, size, data[1], expected)
            calls[name] = self._calls_in_a_round(name, data)
        times = {name: [] for name in names}
        for number in range(rounds):
            first = number % len(names)  # so that the order of the names changes
            for name in names[first:] + names[:first]:
                times[name].append(self._time(name, data, calls[name]))
                advance(name)
        medians = {name: statistics.median(found) for name, found in times.items()}
        wires = [name for name in names if name.startswith("wire")]
        shown = {name: name for name in (*self.algorithms, "copy")}
        if wires:
            shown["wire"] = min(wires, key=medians.get)
        return {
            "bytes": size,
            "seconds": {name: medians[name] for name in self.algorithms},
            "bounds": {name: medians[shown[name]] if name in shown else None for name in BOUNDS},
            "least": {name: min(times[timed]) for name, timed in shown.items()},
            "worst": {name: max(times[timed]) for name, timed in shown.items()},
            "rounds": times,
            "calls": calls,
        }

    def _time(self, name, data, calls):
        """Returns the seconds that a call took on the slowest rank."""
        if name == "gloo":
            seconds = self._gloo.time(data[0], data[1], calls)
        else:
            seconds = self._core.time(name, *data, calls)
        return max(_of_all_ranks(int(seconds * 1e12))) / 1e12

    def _calls_in_a_round(self, name, data):
        seconds = self._time(name, data, 1)
        if seconds * 10 < _ROUND_SECONDS:
            seconds = self._time(name, data, 10)
        return max(1, min(_MOST_CALLS, int(_ROUND_SECONDS / max(seconds, 1e-9))))


def _of_all_ranks(value):
    communicator = world.engine().communicator
    return communicator.gather_values(value, world.fingerprint("a benchmark's time"))


def _data(size):
    """Creates the arrays of a measurement.

    Returns:
        List of the input, memory for the result and memory to copy to; and one period of the sum
        over all ranks. The numbers are small integers, so that their sum is exact in any order.
    """
    count = size // np.dtype(np.float32).itemsize
    most = max(1, min(8, 256 // world.size()))  # bfloat16 has all integers up to 256
    periods = [
        np.random.default_rng(rank).integers(-most, most + 1, _PERIOD).astype(np.float32)
        for rank in range(world.size())
    ]
    data = [np.resize(periods[world.rank()], count)]
    data += [np.zeros(count, np.float32) for _ in range(ARRAYS - 1)]
    return data, np.sum(periods, axis=0)


def _check(name, size, result, period):
    """Raises an error on all ranks unless `result` repeats `period` on every rank."""
    whole = len(result) // _PERIOD * _PERIOD
    right = bool((result[:whole].reshape(-1, _PERIOD) == period).all())
    right = right and bool((result[whole:] == period[: len(result) - whole]).all())
    wrong = [rank for rank, is_right in enumerate(_of_all_ranks(int(right))) if not is_right]
    if wrong:
        raise RuntimeError(
            f"The sum of {size} bytes by {name} is wrong on rank(s) {', '.join(map(str, wrong))}."
        )


def memory_missing(size):
    """Returns why a host has too little memory for arrays of `size` bytes; `None` if none has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = ARRAYS * size * world.local_size()
    for host, needs, has in object_collectives.allgather((world.host(), needed, total)):
        if needs > has:
            return (
                f"argument --sizes: {size} bytes need {ARRAYS} arrays on each rank, together "
                f"{needs / 1e9:.1f} GB on host {host}, which has {has / 1e9:.1f} GB"
            )
    return None


def cores():
    """Returns the set of cores that this host's ranks may use. Collective."""
    # The union, because a launcher may bind each rank to different cores.
    by_rank = object_collectives.allgather((world.host(), os.sched_getaffinity(0)))
    return set().union(*(theirs for host, theirs in by_rank if host == world.host()))


@contextlib.contextmanager
def busy_cores(is_busy=True):
    """Keeps every core of all hosts busy with other work inside a `with` block. Collective.

    Args:
        is_busy: Boolean. `False` disables it.
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
