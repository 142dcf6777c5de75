"""EASYDDL_PLAN under mpirun: the racks and the order of a plan file."""

import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

PLAN = """\
format = 1
hosts = ["a", "b", "c", "d", "spare"]
order = ["x", "y"]

[[groups]]
name = "x"
members = ["a", "c", "spare"]

[[groups]]
name = "y"
members = ["b", "d"]
"""

JOB = """\
import hashlib
import without_keras
from mpi4py import MPI
from ranks import noise
import easyddl as ddl
from easyddl.runtime import world

try:
    ddl.init()
except ValueError as error:
    print(f"refused: {error}", flush=True)
    MPI.COMM_WORLD.Barrier()  # all have printed
    raise
digest = hashlib.sha256()
for count in (1, 4099, 300_007):
    digest.update(ddl.allreduce(noise(ddl.rank(), count, "float32")).tobytes())
racks = world.engine().world.num_groups[0]
print(f"{racks} racks, {digest.hexdigest()}.", flush=True)
"""

# Four hosts, of which no two neighbors are in one rack.
HOSTS = {"EASYDDL_HOSTS": "a,a,b,c,d"}


@pytest.fixture
def run(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(JOB)

    def run(text, is_refused=False, **settings):
        path = tmp_path / "plan.toml"
        path.write_text(text)
        env = {**HOSTS, **{name: value.format(path) for name, value in settings.items()}}
        done = mpi.run(5, script, env=env, timeout=120)
        assert (done.returncode != 0) == is_refused, done.stdout
        return done.stdout, path

    return run


@pytest.mark.gate
def test_the_bits_are_those_of_the_racks(run):
    planned, _ = run(PLAN, EASYDDL_PLAN="{}", EASYDDL_VERBOSE="1")
    told = re.findall(r"(\d racks, \w+)\.", planned)
    assert len(told) == 5 and len(set(told)) == 1 and told[0].startswith("2 racks"), planned
    assert "4 hosts in 2 racks" in planned, planned
    named, _ = run(PLAN, EASYDDL_RACKS="x,y,x,y")
    assert re.findall(r"(\d racks, \w+)\.", named) == told


def test_the_order_is_that_of_the_plan(run):
    flat = 'format = 1\nhosts = ["d", "b", "a", "c"]\n'
    planned, ordered, listed = (
        set(re.findall(r"\d racks, (\w+)\.", run(flat, **settings)[0]))
        for settings in ({"EASYDDL_PLAN": "{}"}, {"EASYDDL_HOST_ORDER": "3,1,0,2"}, {})
    )
    assert planned == ordered != listed, (planned, ordered, listed)
    assert len(planned) == 1 == len(listed)


def test_errors_come_on_all_ranks(run):
    output, path = run(PLAN.replace('"d"', '"e"'), True, EASYDDL_PLAN="{}")
    refused = output.split("refused: ")[1:]  # two ranks may write into one line
    problem = f"`: {path} does not know the hosts d of this job. Make a plan"
    assert len(refused) == 5 and all(problem in each for each in refused), output
