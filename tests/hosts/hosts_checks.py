"""Run under mpirun by test_hosts.py, on hosts that only a network connects."""

import json
import os
import pathlib
import socket

import keras
import network
import numpy as np
from mpi import run_checks
from ranks import assert_equal, assert_same_on_all, assert_world_works, comm, sum_sent_as

import easyddl as ddl

LOCAL_SIZE = int(os.environ["EASYDDL_TEST_LOCAL_SIZE"])
UPLINKS = json.loads(os.environ["EASYDDL_TEST_UPLINKS"])


def bytes_from_this_host():
    """What this rank's host has sent since it began."""
    return int(pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def bytes_from_racks():
    """What each rack has sent since it began, by its name."""
    return {rack: network.bytes_sent(*uplink) for rack, uplink in UPLINKS.items()}


def check_the_ranks_know_their_hosts():
    assert ddl.local_size() == LOCAL_SIZE
    assert ddl.num_nodes() == ddl.size() // LOCAL_SIZE
    names = comm().allgather(socket.gethostname())
    assert len(set(names)) == ddl.num_nodes()
    for rank, name in enumerate(names):
        assert (name == socket.gethostname()) == (rank // LOCAL_SIZE == ddl.node_rank())
    assert_world_works()


def check_what_leaves_hosts_and_racks_is_what_must():
    size = 16 << 20
    assert_leaves_what_must(size, size, lambda mine: ddl.allreduce(mine, "sum"))


def check_bfloat16_is_half_of_the_bytes():
    """The sums are small integers, which are the same in bfloat16."""
    size = 16 << 20
    assert_leaves_what_must(size, size // 2, lambda mine: sum_sent_as("bfloat16", mine))


def assert_leaves_what_must(size, sent_size, allreduce):
    mine = np.random.default_rng(ddl.rank()).integers(-9, 10, size // 4).astype(np.float32)
    allreduce(mine)  # connections are made
    comm().Barrier()
    by_host, by_rack = bytes_from_this_host(), bytes_from_racks()
    comm().Barrier()
    result = allreduce(mine)
    comm().Barrier()
    everyones = [
        np.random.default_rng(rank).integers(-9, 10, size // 4).astype(np.float32)
        for rank in range(ddl.size())
    ]
    assert_equal(result, np.sum(everyones, axis=0, dtype=np.float32))
    if len(UPLINKS) == 1:
        assert_is_what_must(bytes_from_this_host() - by_host, ddl.num_nodes(), sent_size)
    else:
        # Within a rack hosts send more than what must leave each, if they are of unequal number.
        for rack, sent in bytes_from_racks().items():
            assert_is_what_must(sent - by_rack[rack], len(UPLINKS), sent_size)


def assert_is_what_must(sent, parties, size):
    """An allreduce of `size` bytes makes each of n parties send 2(n-1)/n of them."""
    must = 2 * (parties - 1) / parties * size
    assert must <= sent <= 1.02 * must, f"{sent} bytes, {sent / must:.3f} of what must"


def check_a_mean_of_many_chunks_and_odd_sizes():
    for count in (0, 1, 7, 1021, 262_144, 262_145, 3_000_017):
        mine = np.random.default_rng([ddl.rank(), count]).standard_normal(count).astype(np.float32)
        everyones = [
            np.random.default_rng([rank, count]).standard_normal(count).astype(np.float32)
            for rank in range(ddl.size())
        ]
        result = ddl.allreduce(mine, "mean")
        np.testing.assert_allclose(result, np.mean(everyones, axis=0), rtol=1e-5, atol=1e-6)
        assert_same_on_all(result)


def check_training():
    keras.utils.set_random_seed(ddl.rank())
    random = np.random.default_rng(ddl.rank())
    x = random.standard_normal((64, 20)).astype("float32")
    model = keras.Sequential(
        [keras.layers.Input((20,)), keras.layers.Dense(600), keras.layers.Dense(10)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    callbacks = [ddl.DDLCallback(bucket_bytes=10_000), ddl.DDLGlobalVariablesCallback()]
    model.fit(x, x[:, :10], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    for weight in model.get_weights():
        assert_same_on_all(weight)


if __name__ == "__main__":
    run_checks(globals())
