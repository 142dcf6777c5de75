"""Ranks on two hosts, started by a script on one of them."""

import os
import sys
import time

import numpy as np

import easyddl as ddl


def total():
    print("on", os.uname().nodename)
    mine = np.arange(1000.0) + ddl.rank()
    return os.uname().nodename, np.asarray(ddl.allreduce(mine, op="sum"))


def leave():
    os._exit(9 if ddl.rank() == 1 else time.sleep(600))


with ddl.Ranks(3, hosts=sys.argv[1], grace=1, options=("--rsh", sys.argv[2])) as ranks:
    found = ranks.run(total, timeout=60)
    assert [host for host, _ in found] == ["h1", "h2", "h2"], found
    for _, values in found:
        np.testing.assert_array_equal(values, 3 * np.arange(1000) + 3)
    try:
        ranks.run(leave, timeout=60)
    except ddl.RankError as error:
        print("error of", error.rank, error.host)
        assert "Rank 1 on host h2" in str(error), error
print("done", repr(ranks))
