"""Training for very many steps."""

import json
import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("many_steps_job.py")


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
