"""The handshake: who is let in, what is seen on the wire, and whom strangers disturb."""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time

import pytest

from easyddl.doctor import probe
from easyddl.doctor.coordinator import Coordinator
from easyddl.doctor.listener import Listener as LinkListener
from easyddl.doctor.start import Program, end_all
from easyddl.launch import handshake, link
from easyddl.launch.handshake import LIMIT, NONCE, PROOF, Stranger
from easyddl.launch.listener import Listener
from easyddl.launch.placement import Placement
from easyddl.launch.reception import Reception
from easyddl.launch.request import Request
from easyddl.launch.welcome import Welcome, listen
from easyddl.runtime.hosts import HostSlots

TIMEOUT = 60
TOKEN = "0123456789abcdef" * 2


class Loop:
    """A loop of events in a thread of its own, with a reception."""

    def __init__(self, claim_size=0):
        server = socket.create_server(("127.0.0.1", 0))
        self.address = server.getsockname()
        self.received = []
        self._selector = selectors.DefaultSelector()
        self._reception = Reception(self._selector, server, TOKEN, claim_size)
        self._has_ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._has_ended:
            for key, _ in self._selector.select(0.05):
                key.data()
            self.received.extend(self._reception.take())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._has_ended = True
        self._thread.join()
        self._reception.close()
        self._selector.close()
        for sock, _ in self.received:
            sock.close()


class Wire:
    """Passes on the connections to a port, and keeps all bytes of both directions."""

    def __init__(self, port):
        self.seen = [bytearray(), bytearray()]
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()
        self._sockets = []
        self._threads = []
        self._begin(self._accept)

    def _begin(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                self._begin(self._pass_on, near, far, self.seen[0])
                self._begin(self._pass_on, far, near, self.seen[1])

    def _pass_on(self, source, target, seen):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                seen += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for sock in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._server, *self._sockets):
            sock.close()

    def has_no(self, token):
        """Fails if the token has been seen, as text, in hex, or as the bytes of its hex."""
        for seen in self.seen:
            assert len(seen) > NONCE
            for form in (token.encode(), token.encode().hex().encode(), bytes.fromhex(token)):
                assert form not in seen


def wait_until(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_closed(sock):
    """Waits until the other side has closed the connection."""
    sock.settimeout(TIMEOUT)
    with contextlib.suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass
    return True


def test_both_sides_with_the_token_connect():
    with Loop(claim_size=3) as loop:
        sock = handshake.connect(loop.address, TOKEN, b"abc")
        wait_until(lambda: loop.received)
        ((other, claim),) = loop.received
        assert claim == b"abc"
        other.send(b"from the server")
        assert sock.recv(100) == b"from the server"
        sock.close()


def test_both_sides_with_the_token_connect_through_blocking_sockets():
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = []
        thread = threading.Thread(
            target=lambda: found.append(handshake.connect(server.getsockname(), TOKEN))
        )
        thread.start()
        sock, _ = server.accept()
        Stranger(sock, TOKEN).wait()
        thread.join()
    sock.sendall(b"x")
    assert found[0].recv(1) == b"x"
    sock.close()
    found[0].close()


def test_a_client_with_a_wrong_token_is_refused():
    with Loop() as loop:
        with pytest.raises(ConnectionError):
            handshake.connect(loop.address, "wrong")
        handshake.connect(loop.address, TOKEN).close()
        wait_until(lambda: loop.received)
        assert len(loop.received) == 1


@contextlib.contextmanager
def impostor(answer):
    """A server that does not know the token, and answers a client's reply by a function of it."""

    def serve():
        sock, _ = server.accept()
        with sock:
            sock.sendall(os.urandom(NONCE))
            sock.sendall(answer(sock.recv(NONCE + PROOF, socket.MSG_WAITALL)))
            is_closed(sock)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [lambda reply: os.urandom(PROOF), lambda reply: reply[-PROOF:], lambda reply: reply[:PROOF]],
    ids=["guessed", "the client's own", "its nonce"],
)
def test_a_server_without_the_token_is_refused(answer):
    with impostor(answer) as address, pytest.raises(PermissionError, match="the token"):
        handshake.connect(address, TOKEN)


def test_a_server_that_is_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(handshake, "LIMIT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        handshake.connect(server.getsockname(), TOKEN)


def reply_to(nonce, claim=b""):
    own = os.urandom(NONCE)
    return own + claim + handshake._proof(TOKEN, b"client", nonce, own, claim)


def test_a_reply_is_of_no_use_in_another_connection():
    with Loop() as loop:
        first, second = (socket.create_connection(loop.address) for _ in range(2))
        reply = reply_to(first.recv(NONCE, socket.MSG_WAITALL))
        first.sendall(reply)
        assert len(first.recv(PROOF, socket.MSG_WAITALL)) == PROOF
        second.sendall(reply)
        assert len(second.recv(NONCE, socket.MSG_WAITALL)) == NONCE
        assert second.recv(1) == b""
        first.close()
        second.close()


def test_the_proof_of_a_server_is_not_that_of_a_client():
    with Loop() as loop:
        sock = socket.create_connection(loop.address)
        nonce, own = sock.recv(NONCE, socket.MSG_WAITALL), os.urandom(NONCE)
        sock.sendall(own + handshake._proof(TOKEN, b"server", nonce, own, b""))
        assert sock.recv(1) == b""
        sock.close()


def test_a_claim_that_was_changed_on_the_way_is_refused():
    with Loop(claim_size=1) as loop:
        sock = socket.create_connection(loop.address)
        reply = bytearray(reply_to(sock.recv(NONCE, socket.MSG_WAITALL), b"1"))
        reply[NONCE:-PROOF] = b"2"
        sock.sendall(reply)
        assert sock.recv(1) == b""
        sock.close()


def flood(sock):
    with contextlib.suppress(OSError):
        for _ in range(1000):
            sock.sendall(bytes(1 << 16))


STRANGERS = {
    "silent": lambda sock: None,
    "half a handshake": lambda sock: sock.sendall(os.urandom(40)),
    "junk": lambda sock: sock.sendall(b'{"token": "x", "rank": 0}\n' * 10),
    "very much": flood,
    "gone": lambda sock: sock.shutdown(socket.SHUT_RDWR),
}


@contextlib.contextmanager
def strangers(address, limit, monkeypatch):
    """Connects one of each kind. They have a time limit of their own, which begins now."""
    with contextlib.ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(handshake, "LIMIT", limit)
        socks = [stack.enter_context(socket.create_connection(address)) for _ in STRANGERS]
        for sock, behave in zip(socks, STRANGERS.values(), strict=True):
            assert len(sock.recv(NONCE, socket.MSG_WAITALL)) == NONCE
            behave(sock)
        patch.undo()
        yield socks


def test_strangers_do_not_disturb_the_reception_and_are_dropped(monkeypatch):
    with Loop() as loop, strangers(loop.address, 2.0, monkeypatch) as socks:
        began = time.monotonic()
        handshake.connect(loop.address, TOKEN).close()
        wait_until(lambda: loop.received)
        assert all(is_closed(sock) for sock in socks)
        assert time.monotonic() - began < LIMIT
        assert len(loop.received) == 1


def test_one_who_sends_a_byte_now_and_then_is_dropped(monkeypatch):
    monkeypatch.setattr(handshake, "LIMIT", 0.5)
    near, far = socket.socketpair()
    stranger, has_ended = Stranger(near, TOKEN), threading.Event()

    def drip():
        while not has_ended.wait(0.1):
            far.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        stranger.wait()
    assert stranger.is_late
    has_ended.set()
    thread.join()
    near.close()
    far.close()


def test_strangers_do_not_disturb_the_examination(monkeypatch):
    with Coordinator() as coordinator:
        address = ("127.0.0.1", coordinator.port)
        with strangers(address, 2.0, monkeypatch) as socks:
            agent = Program(agent_line(coordinator.port), coordinator.token)
            wait_until(lambda: "here" in coordinator.agents)
            assert all(is_closed(sock) for sock in socks)
            assert list(coordinator.agents) == ["here"]
    end_all([agent])


def agent_line(port):
    line = [sys.executable, "-m", "easyddl.doctor.agent", "--host", "here"]
    return [*line, "--port", str(port), "127.0.0.1"]


def test_the_token_is_not_seen_in_an_examination():
    with Coordinator() as coordinator, Wire(coordinator.port) as wire:
        agent = Program(agent_line(wire.address[1]), coordinator.token)
        wait_until(lambda: "here" in coordinator.agents)
        facts = coordinator.agents["here"].ask("facts").result(TIMEOUT)
        listener = LinkListener(coordinator.token)
        with Wire(listener.ports[0]) as other:
            measure = [coordinator.token, *other.address]
            assert probe.measure(*measure, packets=8, seconds=0)["sent"]
            other.has_no(coordinator.token)
        listener.close()
        wire.has_no(coordinator.token)
        assert facts["hostname"].encode() in wire.seen[0]  # it has seen what was said
    end_all([agent])


def test_the_token_is_not_seen_between_a_caller_and_its_ranks():
    token = os.urandom(32).hex()
    server = listen(None)
    with Wire(server.getsockname()[1]) as wire:
        welcome, found = Welcome(1, token, server), []

        def come():
            for kind in (link.CONTROL, link.STDOUT, link.STDERR):
                found.append(link.connect(wire.address, token, kind, 0))
            found[0].sendall(b"hello")

        thread = threading.Thread(target=come)
        thread.start()
        wait_until(lambda: welcome.wait() or not welcome.missing())
        thread.join()
        welcome.close()
        wait_until(lambda: b"hello" in wire.seen[0])
        wire.has_no(token)
        for sock in [*found, *welcome.connections.values()]:
            sock.close()


class Reports:
    """The port of `easyddl run` and its loop, for one rank on this machine."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        placement = Placement([HostSlots("localhost", 1)], "-np", local=True)
        self.listener = Listener(self._selector, Request(["true"]), placement)
        self.settings = json.loads(self.listener.settings())
        (self.address,) = map(tuple, self.settings["addresses"])
        self.reported = []

    def step(self):
        """Waits a moment, and takes in what has come."""
        for key, _ in self._selector.select(0.05):
            key.data()
        self.reported += self.listener.take()
        return len(self.reported)

    def rank(self, *addresses):
        """Starts a rank that reports at one of some addresses."""
        settings = json.dumps({**self.settings, "addresses": addresses})
        return subprocess.Popen(
            [sys.executable, "-m", "easyddl.launch.rank"],
            env={**os.environ, "EASYDDL_LAUNCH": settings, "PMI_RANK": "0", "PMI_SIZE": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.listener.close()
        for each, _ in self.reported:
            each.close()
        self._selector.close()


def test_the_token_is_not_seen_when_a_rank_reports():
    with Reports() as reports, Wire(reports.address[1]) as wire:
        rank = reports.rank(wire.address)
        wait_until(lambda: reports.step() == 2)
        assert [message for _, message in reports.reported if "rank" in message]
        for each, _ in reports.reported:
            each.close()
        rank.communicate(timeout=TIMEOUT)
        assert socket.gethostname().encode() in wire.seen[0]
        wire.has_no(reports.settings["token"])


def test_strangers_do_not_disturb_a_rank_that_reports(monkeypatch):
    with Reports() as reports:
        has_ended = threading.Event()
        loop = threading.Thread(target=lambda: [reports.step() for _ in iter(has_ended.is_set, 1)])
        loop.start()
        with strangers(reports.address, 2.0, monkeypatch) as socks:
            rank = reports.rank(reports.address)
            wait_until(lambda: len(reports.reported) == 2)
            assert all(is_closed(sock) for sock in socks)
        has_ended.set()
        loop.join()
    rank.communicate(timeout=TIMEOUT)


def test_a_rank_looks_further_where_a_process_does_not_know_the_token():
    with Reports() as reports, impostor(lambda reply: reply[-PROOF:]) as address:
        rank = reports.rank(address, reports.address)
        wait_until(lambda: reports.step() == 2)
    rank.communicate(timeout=TIMEOUT)
