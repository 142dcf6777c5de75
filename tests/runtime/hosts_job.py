"""Run under mpirun by test_layout.py: settings that are wrong, and a sum that repeats."""

import hashlib
import os

import without_keras  # noqa: F401  (first)

# isort: split
from ranks import noise

import easyddl as ddl
from easyddl.runtime import engine

HOSTS = " a, b ,a,b"

# A setting, values that it cannot have, and what is said of each, beside the value itself.
WRONG = [
    (
        "EASYDDL_HOSTS",
        ["a", "a,b,c", "a,,b,b", ",,,", " , , , "],
        "EASYDDL_HOSTS must name the host of each rank, as in EASYDDL_HOSTS=a,a,b,b for four "
        "ranks. There are 4 ranks",
    ),
    (
        "EASYDDL_RACKS",
        ["x", "x,y,z", "a/x"],
        "EASYDDL_RACKS must name the rack of each host, in the order of the hosts, as in "
        "EASYDDL_RACKS=a,a,b,b for four. There are 2 host(s). Received on rank 0: ",
    ),
    *[
        ("EASYDDL_RACKS", [f"x/y,{rack}"], f"A part of the rack of host b, '{rack}', is empty. ")
        for rack in ("", "/", "x/", "/y", "x//y", "x/ /y")
    ],
    (
        "EASYDDL_RACKS",
        ["x/y,z"],
        "All must have as many parts, the largest group first, as in a/x,a/y,b/z,b/z, but the rack "
        "of host a, 'x/y', has 2 and the rack of host b, 'z', has 1. Received on rank 0: ",
    ),
    (
        "EASYDDL_HOST_ORDER",
        ["0", "0,0", "0,2", "0,1,2", "a,b", "0,,1", "00,1"],
        "EASYDDL_HOST_ORDER must list the number of each host once, as in "
        "EASYDDL_HOST_ORDER=0,2,1,3 for four. There are 2 host(s). Received on rank 0: ",
    ),
    (
        "EASYDDL_ALGORITHM",
        ["tree", "Ring", "ring,1000:tree", "ring/", "/ring", ",ring", "flat/ring"],
        "EASYDDL_ALGORITHM must be one of whole, direct, halving, ring and flat, or rules such as "
        "flat,100000:direct/ring. Received: ",
    ),
    *[
        ("EASYDDL_ALGORITHM", [rules], problem)
        for rules, problem in (
            ("0:ring", "The first rule has no number of bytes, and each other has one. "),
            ("ring,", "The first rule has no number of bytes, and each other has one. "),
            ("ring,whole", "The first rule has no number of bytes, and each other has one. "),
            ("ring,1e3:whole", "'1e3' is not a number of bytes. "),
            ("ring,-1:whole", "'-1' is not a number of bytes. "),
            ("ring,:whole", "'' is not a number of bytes. "),
            ("ring,7777777777777777777:whole", "'7777777777777777777' is not a number of bytes. "),
            ("ring,0:whole", "The numbers of bytes must ascend. "),
            ("ring,9:whole,9:ring", "The numbers of bytes must ascend. "),
        )
    ],
    ("EASYDDL_STALL_WARN", ["-1", "soon", "inf"], "EASYDDL_STALL_WARN must be a number of seconds"),
    ("EASYDDL_STALL_ABORT", ["-1", "x", "nan"], "EASYDDL_STALL_ABORT must be a number of seconds"),
]


def assert_refused(name, value, said):
    os.environ.update({"EASYDDL_HOSTS": HOSTS, name: value})
    try:
        ddl.init()
    except (ValueError, RuntimeError) as error:
        assert said in str(error) and repr(value) in str(error), error
    else:
        raise AssertionError(f"{name}={value!r} was taken")
    del os.environ[name]
    engine._failure = None  # else every later start would be the same error


for name, values, said in WRONG:
    for value in values:
        assert_refused(name, value, said)

os.environ["EASYDDL_HOSTS"] = HOSTS
assert ddl.num_nodes() == 2

digest = hashlib.sha256()
for count in (5, 3001, 90_001, 1_100_003):
    for dtype in ("float16", "float32"):
        digest.update(ddl.allreduce(noise(ddl.rank(), count, dtype)).tobytes())
        digest.update(ddl.reduce_scatter(noise(ddl.rank(), count // 4 * 4, dtype)).tobytes())
everyones = ddl.allgather_object(digest.hexdigest())
if ddl.is_root():
    print("digest", *everyones, flush=True)
ddl.barrier()
