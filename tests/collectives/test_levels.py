"""Collectives between hosts in groups of groups."""

import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("levels_job.py")

# The host of each rank, the rack of each host, the order of the hosts, and the number of levels.
GATE = ("a,b,c,d,a,e,f", "u/x,u/x,v/y,u/z,v/y,u/x", "4,5,1,3,0,2", 3)
LAYOUTS = [
    ("a,b,a,c", "x,x,x", "2,0,1", 1),
    ("a,b,c,d,e", "x,y,x,y,y", "4,1,0,3,2", 2),
    ("a,b,c,d,e,f,g,h", "u/x,v/x,u/x,v/x,u/y,v/y,u/y,v/y", "7,6,5,4,3,2,1,0", 3),
    # Racks of the same name in aisles that lie in one group.
    ("a,b,c,d,e", "r/u/x,r/u/x,r/v/x,r/v/x,r/v/y", "0,1,2,3,4", 3),
    # Racks of 2 and 3 hosts, aisles of 2 and 1 racks, rooms of 2 and 1 aisles.
    (
        "a,b,c,d,e,f,g,h,i,j,k,l,m",
        "r/u/x,r/u/x,r/u/y,r/u/y,r/v/x,r/v/x,r/v/y,r/v/y,s/u/x,s/u/x,s/u/y,s/u/y,s/u/y",
        "12,0,11,1,10,2,9,3,8,4,7,5,6",
        4,
    ),
    # Each rack has one host.
    ("a,b,c,d,e,f", "r/u/1,r/u/2,r/v/3,s/w/4,s/w/5,s/w/6", "1,0,2,5,3,4", 4),
]


def digest_of(hosts, racks, order, levels, algorithm):
    names = ("HOSTS", "RACKS", "HOST_ORDER", "ALGORITHM")
    env = {
        f"EASYDDL_{name}": value
        for name, value in zip(names, (hosts, racks, order, algorithm), strict=True)
    }
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
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0][-1]}-{layout[3]}")
def test_levels(layout, algorithm):
    digest_of(*layout, algorithm)


def test_algorithms_by_level_and_size():
    """Up to 5000 bytes and beyond, the sums are those of the algorithms."""
    direct = digest_of(*GATE, "direct")
    assert digest_of(*GATE, "direct,4000:direct/direct/direct") == direct
    assert digest_of(*GATE, "flat,5000:direct/direct/direct") != direct
    assert digest_of(*GATE, "direct,4000:ring/halving/whole") != direct


def test_a_layout_gives_the_same_bits_in_every_run():
    assert digest_of(*GATE, "") == digest_of(*GATE, "")
