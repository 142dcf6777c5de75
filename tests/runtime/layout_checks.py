"""Who is where."""

import os

from ranks import comm

import easyddl as ddl


def check_layout():
    rank, size = comm().rank, comm().size
    names = os.environ.get("EASYDDL_HOSTS", "")
    hosts = names.split(",") if names else ["this one"] * size
    assert (ddl.rank(), ddl.size()) == (rank, size)
    mine = [other for other in range(size) if hosts[other] == hosts[rank]]
    assert ddl.local_rank() == mine.index(rank)
    assert ddl.local_size() == len(mine)
    in_order = list(dict.fromkeys(hosts))  # numbered by their first rank
    assert ddl.node_rank() == in_order.index(hosts[rank])
    assert ddl.num_nodes() == len(in_order)
    assert ddl.is_root() is (rank == 0)


def check_init_may_be_called_again():
    ddl.init()
    ddl.init()
    assert ddl.size() == comm().size
