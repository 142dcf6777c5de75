"""Collectives between hosts in groups of groups."""

import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("levels_job.py")

# The host of each rank, the rack of each host, and the number of levels.
GATE = ("a,b,c,d,a,e", "u/x,u/x,v/y,u/z,v/y", 3)
LAYOUTS = [
    ("a,b,a,c", "x,x,x", 1),
    ("a,b,c,d,e", "x,y,x,y,y", 2),
    ("a,b,c,d,e,f,g,h", "u/x,v/x,u/x,v/x,u/y,v/y,u/y,v/y", 3),
    # Racks of the same name in aisles that lie in one group.
    ("a,b,c,d,e", "r/u/x,r/u/x,r/v/x,r/v/x,r/v/y", 3),
    # Racks of 2 and 3 hosts, aisles of 2 and 1 racks, rooms of 2 and 1 aisles.
    (
        "a,b,c,d,e,f,g,h,i,j,k,l,m",
        "r/u/x,r/u/x,r/u/y,r/u/y,r/v/x,r/v/x,r/v/y,r/v/y,s/u/x,s/u/x,s/u/y,s/u/y,s/u/y",
        4,
    ),
    # Each rack has one host.
    ("a,b,c,d,e,f", "r/u/1,r/u/2,r/v/3,s/w/4,s/w/5,s/w/6", 4),
]


def digest_of(hosts, racks, levels, algorithm):
    env = {"EASYDDL_HOSTS": hosts, "EASYDDL_RACKS": racks, "EASYDDL_ALGORITHM": algorithm}
    ranks = hosts.count(",") + 1
    done = mpi.run(ranks, JOB, levels, env=env)
    assert done.returncode == 0 and done.stdout.count("all is well") == ranks, done.stdout
    return re.search(r"digest (\w+)", done.stdout)[1]


@pytest.mark.gate
def test_three_levels_and_the_order_of_their_sums():
    digest_of(*GATE, "direct")


@pytest.mark.parametrize(
    "algorithm",
    ["", "direct", *[pytest.param(name, marks=pytest.mark.soak) for name in ("halving", "ring")]],
)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0][-1]}-{layout[2]}")
def test_levels(layout, algorithm):
    digest_of(*layout, algorithm)


def test_a_layout_gives_the_same_bits_in_every_run():
    assert digest_of(*GATE, "") == digest_of(*GATE, "")
