"""How a caller and its ranks find each other, and how the marks in output are found."""

import os
import sys
import threading
import time

import pytest

from easyddl.launch.calls import call_server, rank_group
from easyddl.launch.output.call_marks import CallMarks
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection


def come(address, token, rank, size):
    """Connects as a rank does, and introduces it. Returns the connection, or the error."""
    try:
        found = Connection(handshake.connect(address, token, protocol.MESSAGES, rank))
    except ConnectionError as error:
        return error
    version = ".".join(map(str, sys.version_info[:2]))
    found.number = rank
    found.send(host="h", pid=rank, python=version, size=size)
    return found


class Launcher:
    """Stands in for the launcher: its ranks are threads of this process.

    Args:
        ranks: List of integers. The rank of each thread.
    """

    status = None

    def __init__(self, ranks):
        self._ranks = ranks
        self.found = []  # connections of the ranks

    def __call__(self, line, env, pass_fds):
        assert line[line.index("--calls") + 1] == str(*pass_fds)
        self._calls = os.dup(*pass_fds)
        address, token = ("127.0.0.1", int(line[-1])), env[call_server.TOKEN]
        self._threads = [
            threading.Thread(
                target=lambda rank=rank: self.found.append(
                    come(address, token, rank, len(self._ranks))
                )
            )
            for rank in self._ranks
        ]
        for thread in self._threads:
            thread.start()
        return self

    def has_ended(self):
        return False

    def output(self, most):
        return ""

    def wait(self):
        """Waits until all ranks have connected."""
        for thread in self._threads:
            thread.join()

    def end_within(self, seconds):
        self.wait()

    def close(self):
        os.close(self._calls)
        for each in self.found:
            if not isinstance(each, ConnectionError):
                each.close()


def test_ranks_that_know_the_token_are_received(monkeypatch):
    launcher = Launcher([0, 1])
    monkeypatch.setattr(rank_group, "BackgroundProgram", launcher)
    group = rank_group.RankGroup(2, None, {}, None, 30)
    assert [each.pid for each in group.ranks] == [0, 1]
    group.end("the test is over")  # waits for the ranks
    assert len(launcher.found) == 2


@pytest.mark.parametrize("how", ["garbage", "end"])
def test_a_rank_that_sends_garbage_or_ends_is_lost(how, monkeypatch):
    launcher = Launcher([0, 1])
    monkeypatch.setattr(rank_group, "BackgroundProgram", launcher)
    group = rank_group.RankGroup(2, None, {}, None, 30)
    launcher.wait()  # a rank that is received may not have returned from its call yet
    control = next(each for each in launcher.found if each.wait(30) and each.number == 1)
    if how == "garbage":
        control.socket.sendall(b"\xff" * 100)
    else:
        control.close()
    end = time.monotonic() + 30
    while group.ended_rank() is None:
        assert time.monotonic() < end
        group.pump()
    assert group.ended_rank().number == 1
    group.end("the test is over")


def test_only_ranks_of_other_hosts_may_connect_from_elsewhere():
    for hosts, address in ((None, "127.0.0.1"), ("h1:1,h2:1", "0.0.0.0")):
        with rank_group.listen(hosts) as server:
            assert server.getsockname()[0] == address


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2]])
def test_another_number_of_ranks(ranks, monkeypatch):
    monkeypatch.setattr(rank_group, "BackgroundProgram", Launcher(ranks))
    words = f"2 ranks were asked for, but the launcher started {len(ranks)}"
    with pytest.raises(RuntimeError, match=words):
        rank_group.RankGroup(2, None, {}, None, 30)


def test_marks_are_found_wherever_they_are_cut():
    mark = b"\0mark\0of\0a\0call"
    data = b"one two\0" + mark + b"\0ma three" + mark + mark + b"\0mark"
    for size in range(1, len(data) + 1):
        marks, found = CallMarks(mark), [b""]
        for start in range(0, len(data), size):
            for piece in marks.split(data[start : start + size]):
                found += [None, b""] if piece is None else []
                found[-1] += piece or b""
        assert found == [b"one two\0", None, b"\0ma three", None, b"", None, b""]
        assert marks.rest() == b"\0mark" and marks.rest() == b""
