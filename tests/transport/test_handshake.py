"""The handshake: who is let in, what is seen on the wire, and whom strangers disturb."""

import contextlib
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time

import pytest

from easyddl.doctor import probe
from easyddl.doctor.agent_start import Program, end_all
from easyddl.doctor.coordinator import Coordinator
from easyddl.doctor.link_ports import open_ports
from easyddl.hosts.host_list import HostSlots
from easyddl.launch.start.placement import Placement
from easyddl.launch.start.request import Request
from easyddl.launch.supervise.reports import Reports
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection
from easyddl.transport.listener import Listener
from easyddl.transport.protocol import ALIVE, CLAIM, LIMIT, MESSAGES, NONCE, PROBE, PROOF

TIMEOUT = 60
TOKEN = "0123456789abcdef" * 2


class Loop:
    """A loop of events in a thread of its own, with a listener.

    Args:
        make: Function of a selector that returns the listener. Defaults to one of `TOKEN`.
    """

    def __init__(self, make=None):
        def listen(selector):
            server = socket.create_server(("127.0.0.1", 0))
            return Listener(selector, server, TOKEN, [PROBE, MESSAGES])

        self.received = []
        self._selector = selectors.DefaultSelector()
        self.listener = (make or listen)(self._selector)
        self.address = ("127.0.0.1", self.listener.port)
        self._has_ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._has_ended:
            for key, _ in self._selector.select(0.05):
                key.data()
            self.received.extend(self.listener.take())

    def wait(self, count=1):
        """Waits until so many clients have arrived, and returns the last of them."""
        wait_until(lambda: len(self.received) >= count)
        assert len(self.received) == count
        return self.received[-1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._has_ended = True
        self._thread.join()
        self.listener.close()
        self._selector.close()
        for arrival in self.received:
            arrival.socket.close()


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
    with Loop() as loop:
        sock = handshake.connect(loop.address, TOKEN, PROBE, 1234567890)
        arrival = loop.wait()
        assert (arrival.kind, arrival.number) == (PROBE, 1234567890)
        arrival.socket.send(b"from the server")
        assert sock.recv(100) == b"from the server"
        sock.close()


def test_a_client_for_messages_arrives_with_its_first_one():
    with Loop() as loop:
        client = Connection(handshake.connect(loop.address, TOKEN, MESSAGES, 3))
        handshake.connect(loop.address, TOKEN, PROBE).close()
        assert loop.wait().kind == PROBE
        client.send(name="h1")
        arrival = loop.wait(2)
        assert (arrival.number, arrival.header) == (3, {"name": "h1"})
        arrival.connection.send(b"data", answer=1)
        assert client.wait(TIMEOUT) == ({"answer": 1}, [b"data"])
        client.close()


def test_a_client_whose_first_message_is_none_is_dropped():
    with Loop() as loop, handshake.connect(loop.address, TOKEN, MESSAGES) as sock:
        sock.sendall(b"no message " * 10)
        assert is_closed(sock) and loop.received == []


@pytest.mark.parametrize(("token", "kind"), [("wrong", PROBE), (TOKEN, ALIVE)])
def test_a_client_with_a_wrong_token_or_claim_is_refused(token, kind):
    with Loop() as loop:
        with pytest.raises(ConnectionError):
            handshake.connect(loop.address, token, kind)
        handshake.connect(loop.address, TOKEN, PROBE).close()
        loop.wait()


def reply_to(nonce, side=b"client", claimed=1):
    own, claim = os.urandom(NONCE), CLAIM.pack(PROBE, 1)
    proof = handshake._proof(TOKEN, side, nonce, own, claim)
    return own + CLAIM.pack(PROBE, claimed) + proof


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (reply_to, True),
        (lambda nonce: reply_to(bytes(NONCE)), False),  # of another connection
        (lambda nonce: reply_to(nonce, b"server"), False),
        (lambda nonce: reply_to(nonce, claimed=2), False),  # changed on the way
    ],
)
def test_a_proof_is_of_no_use_elsewhere(answer, is_right):
    with Loop() as loop, socket.create_connection(loop.address) as sock:
        sock.sendall(answer(sock.recv(NONCE, socket.MSG_WAITALL)))
        assert len(sock.recv(PROOF, socket.MSG_WAITALL)) == PROOF * is_right


@contextlib.contextmanager
def impostor(answer):
    """A server that does not know the token, and answers a client's reply by a function of it."""

    def serve():
        sock, _ = server.accept()
        with sock:
            sock.sendall(os.urandom(NONCE))
            sock.sendall(answer(sock.recv(NONCE + CLAIM.size + PROOF, socket.MSG_WAITALL)))
            is_closed(sock)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda reply: os.urandom(PROOF), PermissionError),
        (lambda reply: reply[-PROOF:], PermissionError),  # the client's own
        (lambda reply: reply[:PROOF], PermissionError),
        (lambda reply: b"", TimeoutError),
    ],
)
def test_a_server_without_the_token_is_refused(answer, error, monkeypatch):
    monkeypatch.setattr(protocol, "LIMIT", 0.5)
    with impostor(answer) as address, pytest.raises(error):
        handshake.connect(address, TOKEN, PROBE)


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


def test_strangers_do_not_disturb_the_listener_and_are_dropped(monkeypatch):
    with Loop() as loop, contextlib.ExitStack() as stack:
        monkeypatch.setattr(protocol, "LIMIT", 2.0)
        socks = [stack.enter_context(socket.create_connection(loop.address)) for _ in STRANGERS]
        for sock, behave in zip(socks, STRANGERS.values(), strict=True):
            assert len(sock.recv(NONCE, socket.MSG_WAITALL)) == NONCE
            behave(sock)
        monkeypatch.undo()
        began = time.monotonic()
        handshake.connect(loop.address, TOKEN, PROBE).close()
        loop.wait()
        assert all(is_closed(sock) for sock in socks)
        assert time.monotonic() - began < LIMIT


def test_one_who_sends_a_byte_now_and_then_is_dropped(monkeypatch):
    monkeypatch.setattr(protocol, "LIMIT", 0.5)
    with Loop() as loop, socket.create_connection(loop.address) as sock:
        end = time.monotonic() + TIMEOUT
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                sock.send(b"x")
                time.sleep(0.1)


def test_the_oldest_of_too_many_strangers_is_dropped(monkeypatch):
    monkeypatch.setattr(protocol, "ROOM", 20)
    with Loop() as loop, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(loop.address)) for _ in range(25)]
        handshake.connect(loop.address, TOKEN, PROBE).close()
        loop.wait()
        assert all(is_closed(sock) for sock in socks[:6])
        for sock in socks[6:]:
            sock.settimeout(0.01)
            assert len(sock.recv(NONCE)) == NONCE
            with pytest.raises(TimeoutError):
                sock.recv(1)


CROWD = """
import socket, sys
from easyddl.transport import handshake, protocol
address = ("127.0.0.1", int(sys.argv[1]))
input()
strangers = [socket.create_connection(address) for _ in range(100)]
known = [handshake.connect(address, sys.argv[2], protocol.PROBE) for _ in range(3)]
print("connected", flush=True)
input()
"""


def test_strangers_that_use_up_all_descriptors_keep_nobody_out():
    with Loop() as loop:
        arguments = [sys.executable, "-c", CROWD, str(loop.address[1]), TOKEN]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        crowd = subprocess.Popen(arguments, **pipes)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        limit = [n for n in range(10_000) if n not in used][20]  # so many are free
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
        try:
            crowd.stdin.write("\n")
            crowd.stdin.flush()
            assert crowd.stdout.readline() == "connected\n"
            loop.wait(3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            crowd.communicate("\n", timeout=TIMEOUT)


def test_a_client_that_cannot_be_accepted_does_not_keep_the_loop_awake():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = socket.create_server(("127.0.0.1", 0))
    with selectors.DefaultSelector() as selector, socket.socket() as client:
        listener = Listener(selector, server, TOKEN, [MESSAGES])
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # no new ones
        try:
            client.connect(server.getsockname())
            ((key, _),) = selector.select(TIMEOUT)
            key.data()
            assert selector.select(0.1) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert list(listener.take()) == []  # the next round of the loop
        ((key, _),) = selector.select(TIMEOUT)
        key.data()
        assert len(client.recv(NONCE, socket.MSG_WAITALL)) == NONCE
        listener.close()


def test_the_token_is_not_seen_in_an_examination():
    with Coordinator() as coordinator, Wire(coordinator.port) as wire:
        line = [sys.executable, "-m", "easyddl.doctor.agent", "--host", "here"]
        agent = Program([*line, "--port", str(wire.address[1])], coordinator.token)
        wait_until(lambda: coordinator.accept(0.05) or "here" in coordinator.agents)
        facts = coordinator.agents["here"].ask("facts").result(TIMEOUT)
        with Wire(open_ports(coordinator.token)[0]) as other:
            measure = [coordinator.token, *other.address]
            assert probe.measure(*measure, packets=8, seconds=0)["sent"]
            other.has_no(coordinator.token)
        wire.has_no(coordinator.token)
        assert facts["hostname"].encode() in wire.seen[0]  # it has seen what was said
    end_all([agent])


@contextlib.contextmanager
def reporting_rank(*others):
    """The loop of `easyddl run`, and a rank on this host that reports there.

    Args:
        *others: Addresses that the rank tries before.
    """
    placement = Placement([HostSlots("localhost", 1)], "-np", local=True)
    with Loop(lambda selector: Reports(selector, Request(["true"]), placement)) as loop:
        settings = json.loads(loop.listener.settings())
        settings["addresses"] = [*others, *settings["addresses"]]
        rank = subprocess.Popen(
            [sys.executable, "-m", "easyddl.launch.supervise.rank"],
            env={
                **os.environ,
                "EASYDDL_LAUNCH": json.dumps(settings),
                "PMI_RANK": "0",
                "PMI_SIZE": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        loop.wait(2)
        yield loop, rank
    rank.communicate(timeout=TIMEOUT)


def test_a_rank_looks_further_where_a_process_does_not_know_the_token():
    with impostor(lambda reply: reply[-PROOF:]) as address, reporting_rank(address) as (loop, _):
        assert [each.header["rank"] for each in loop.received if each.connection] == [0]


@pytest.mark.parametrize("how", ["garbage", "end"])
def test_a_rank_ends_when_its_job_sends_garbage_or_ends(how):
    with reporting_rank() as (loop, rank):
        (link,) = (each.connection for each in loop.received if each.connection)
        if how == "garbage":
            link.socket.sendall(b"\xff" * 100)
        else:
            link.close()
        rank.communicate(timeout=TIMEOUT)
    assert rank.returncode == 1
