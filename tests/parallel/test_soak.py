import json
import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("soak_job.py")


def growth_in_ten_thousand_steps(ranks):
    done = mpi.run(ranks, SCRIPT, timeout=900)
    assert done.returncode == 0, done.stdout
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


@pytest.mark.longest
def test_ten_thousand_steps_leave_nothing_behind():
    # Keras and TensorFlow grow a little by themselves, which one process shows.
    alone, growth = growth_in_ten_thousand_steps(1), growth_in_ten_thousand_steps(2)
    assert growth["files"] <= 0 and growth["shared_memory"] <= 0, growth
    assert growth["threads"] <= max(0, alone["threads"]), (growth, alone)
    # In 9,000 steps: a hundred bytes lost in each would show.
    assert growth["resident_kib"] < alone["resident_kib"] + 900, (growth, alone)


MOST_BYTES = 2**31 + 4 * 12_345
NEEDED_BYTES = 6 * MOST_BYTES


@pytest.mark.longest
@pytest.mark.skipif(
    mpi.available_bytes() < NEEDED_BYTES,
    reason=f"needs {NEEDED_BYTES / 1e9:.0f} GB of free memory",
)
@pytest.mark.parametrize(("hosts", "collectives"), [("a,a", "sums rows"), ("a,b", "parts objects")])
def test_more_than_two_to_the_31_bytes(hosts, collectives):
    environment = {"EASYDDL_HOSTS": hosts}
    job = SCRIPT.with_name("large_job.py")
    done = mpi.run(2, job, MOST_BYTES, *collectives.split(), env=environment)
    assert done.returncode == 0 and done.stdout.count("all is well") == 2, done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("hosts", ["a,a", "a,a,b,b", "a,b,c"])
def test_the_memory_of_an_exchange(hosts):
    # glibc keeps what is freed for the next one to ask, unless it had been mapped by itself.
    environment = {"EASYDDL_HOSTS": hosts, "MALLOC_MMAP_THRESHOLD_": "65536"}
    job, size = SCRIPT.with_name("memory_job.py"), 100_000_000
    done = mpi.run(hosts.count(",") + 1, job, size, env=environment)
    assert done.returncode == 0, done.stdout
    # Means take the place of their gradients: only slots and messages are new.
    assert int(re.search(r"most: (-?\d+)", done.stdout)[1]) < 64 << 20, done.stdout
