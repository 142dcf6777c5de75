"""Run under mpirun by test_layout.py: EASYDDL_HOSTS that are wrong, and a sum that repeats."""

import hashlib
import os

from ranks import noise

import easyddl as ddl

for wrong in ("a", "a,b,c", "a,,b,b", ",,,", " , , , "):
    os.environ["EASYDDL_HOSTS"] = wrong
    try:
        ddl.init()
    except ValueError as error:
        assert "EASYDDL_HOSTS must name the host of each rank" in str(error), error
        assert "There are 4 ranks" in str(error) and repr(wrong) in str(error), error
    else:
        raise AssertionError(f"{wrong!r} was taken")

os.environ["EASYDDL_HOSTS"] = " a, b ,a,b"
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
