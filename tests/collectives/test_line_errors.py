"""An error of one rank at any line between a collective's entry and the engine is never silent."""

import os
import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("line_errors_job.py")
# Each error leaves a communicator's memory behind: a megabyte a rank on one host, eight on several.
ERRORS = {"a,a": 100, "a,b": 40, "a,a,a": 60, "a,b,b": 40}
MORE = {"a,a": 600, "a,b": 150, "a,a,a": 500, "a,b,b": 120}


def plant(hosts, seed, errors):
    env = {"EASYDDL_HOSTS": hosts, "EASYDDL_STALL_ABORT": "60"}
    done = mpi.run(hosts.count(",") + 1, SCRIPT, seed, errors, timeout=400, env=env)
    found = re.search(r"(\d+) errors at (\d+) lines", done.stdout)
    assert done.returncode == 0 and found, done.stdout
    assert int(found[1]) == errors and int(found[2]) > errors / 8, found[0]


@pytest.mark.parametrize(
    "hosts", ["a,a", pytest.param("a,b", marks=pytest.mark.gate), "a,a,a", "a,b,b"]
)
def test_an_error_at_any_line_is_heard_by_all_ranks(hosts):
    plant(hosts, 0, ERRORS[hosts])


@pytest.mark.longest
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("EASYDDL_LINE_ERRORS_SEEDS", 1))))
@pytest.mark.parametrize("hosts", MORE)
def test_errors_at_more_lines(hosts, seed):
    plant(hosts, seed, MORE[hosts])
