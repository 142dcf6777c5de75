"""Objects of all ranks, and taking turns."""

import threading
import time
import types

import numpy as np
from ranks import (
    assert_equal,
    assert_same_on_all,
    assert_world_works,
    comm,
    error_of,
    values,
)

import easyddl as ddl
from easyddl.collectives import objects


def check_allgather_object():
    rank, size = ddl.rank(), ddl.size()
    assert ddl.allgather_object(rank) == list(range(size))
    assert ddl.allgather_object(None) == [None] * size
    assert ddl.allgather_object("é" * rank) == ["é" * each for each in range(size)]
    nested = {"rank": rank, "list": [1, (2, {3}), None], "text": {"a": b"\0" * rank}}
    assert ddl.allgather_object(nested) == [
        {**nested, "rank": each, "text": {"a": b"\0" * each}} for each in range(size)
    ]


def check_allgather_object_keeps_types():
    class_of_each = (int, float, str, list)
    mine = class_of_each[ddl.rank() % 4]("7")
    gathered = ddl.allgather_object(mine)
    assert [type(each) for each in gathered] == [class_of_each[r % 4] for r in range(ddl.size())]


def check_allgather_of_large_objects():
    mine = values(ddl.rank(), 70_001 * (ddl.rank() + 1), "float32")
    for rank, each in enumerate(ddl.allgather_object([mine])):
        assert_equal(each[0], values(rank, 70_001 * (rank + 1), "float32"))


def check_broadcast_object_from_every_root():
    for root in range(ddl.size()):
        for make in (
            lambda rank: None,
            lambda rank: {"rank": rank, "more": [rank, (None, "é")]},
            lambda rank: b"",
            lambda rank: bytes(700_001) + bytes([rank]),
        ):
            assert ddl.broadcast_object(make(ddl.rank()), root_rank=root) == make(root)


def check_broadcast_object_returns_the_roots_own():
    mine = [ddl.rank()]
    result = ddl.broadcast_object(mine)
    assert result == [0]
    assert (result is mine) == ddl.is_root()


def check_only_the_roots_object_counts():
    obj = "the root's" if ddl.is_root() else threading.Lock()
    assert ddl.broadcast_object(obj) == "the root's"


def check_object_that_cannot_be_pickled_on_all_ranks():
    text = error_of(TypeError, lambda: ddl.allgather_object(threading.Lock()))
    assert "`obj` must be picklable" in text and "Received: obj of type lock" in text, text
    assert_world_works()


def a_function():
    """Pickled by its name, which then says another."""


def check_error_that_names_an_address():
    # It differs by rank, but the mistake is the same on all.
    other = types.FunctionType(a_function.__code__, {}, "a_function")
    text = error_of(TypeError, lambda: ddl.allgather_object(other))
    assert "`obj` must be picklable" in text, text
    assert_world_works()


def check_object_that_cannot_be_pickled_on_one_rank():
    if ddl.size() == 1:
        return
    for wrong in (0, ddl.size() - 1):
        obj = threading.Lock() if ddl.rank() == wrong else "fine"
        text = error_of(RuntimeError, lambda obj=obj: ddl.allgather_object(obj))
        assert_same_on_all(text)
        assert f"Rank {wrong} called allgather_object(obj) with an object that cannot" in text
        text = error_of(
            RuntimeError, lambda obj=obj, root=wrong: ddl.broadcast_object(obj, root_rank=root)
        )
        assert_same_on_all(text)
        assert f"Rank {wrong} called broadcast_object(root_rank={wrong}) with an object" in text
        assert_world_works()


def check_root_goes_first():
    times = []
    with ddl.root_first():
        times.append(time.monotonic())
        if ddl.is_root():
            time.sleep(0.2)
        times.append(time.monotonic())
    everyones = comm().allgather(times)
    assert all(start >= everyones[0][1] for start, _ in everyones[1:]), everyones


def check_others_go_together():
    with ddl.root_first():
        if not ddl.is_root():
            start = time.monotonic()
            time.sleep(0.2)
    starts = comm().allgather(None if ddl.is_root() else start)[1:]
    if starts:
        assert max(starts) - min(starts) < 0.2 * len(starts)


def check_root_that_fails_in_root_first():
    def body():
        with ddl.root_first():
            if ddl.is_root():
                raise OSError("the disk is full")
            raise AssertionError("must not be reached")

    if ddl.is_root():
        assert error_of(OSError, body) == "the disk is full"
    else:
        text = error_of(RuntimeError, body)
        assert "Rank 0" in text and "OSError: the disk is full" in text, text
    assert_world_works()


def check_other_that_fails_in_root_first():
    done = []
    try:
        with ddl.root_first():
            if not ddl.is_root():
                raise ValueError("mine alone")
            done.append(True)
    except ValueError as error:
        assert not ddl.is_root() and str(error) == "mine alone"
    assert bool(done) == ddl.is_root()
    assert_world_works()


def check_root_first_more_than_once():
    for _ in range(3):
        with ddl.root_first():
            mine = np.zeros(1)
        ddl.allreduce(mine)


def check_messages_name_the_call_of_the_user():
    def first():
        with ddl.root_first():
            pass

    if ddl.size() > 1:
        text = error_of(RuntimeError, first if ddl.is_root() else ddl.barrier)
        assert "Rank 0 called root_first() (in broadcast_object(root_rank=0))." in text, text
        assert_world_works()


def check_from_root_gives_all_its_result_or_its_error():
    class Local(Exception):
        """One that pickle cannot find."""

    def meet(problem):
        raise problem

    assert objects.from_root(lambda: (ddl.rank(), "x"), "a result") == (0, "x")
    for problem, there in [(OSError(28, "full"), OSError), (Local("mine"), RuntimeError)]:
        try:
            objects.from_root(lambda p=problem: meet(p), "an error")
        except Exception as error:
            assert error is problem if ddl.is_root() else type(error) is there, repr(error)
            assert str(problem) in str(error), repr(error)
        else:
            raise AssertionError("nothing was raised")
    assert_world_works()
