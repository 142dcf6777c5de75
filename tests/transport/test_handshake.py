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
from easyddl.doctor.link_ports import LinkPorts
from easyddl.hosts.host_list import HostSlots
from easyddl.launch.calls import call_server
from easyddl.launch.calls.rank_group import listen
from easyddl.launch.start.placement import Placement
from easyddl.launch.start.request import Request
from easyddl.launch.supervise.reports import Reports
from easyddl.transport import connection as connections
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection
from easyddl.transport.listener import Listener
from easyddl.transport.protocol import ALIVE, CLAIM, LIMIT, MESSAGES, NONCE, PROBE, PROOF

TIMEOUT = 60
TOKEN = "0123456789abcdef" * 2


class Loop:
    """A loop of events in a thread of its own, with a listener."""

    def __init__(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.address = server.getsockname()
        self.received = []
        self._selector = selectors.DefaultSelector()
        self._listener = Listener(self._selector, server, TOKEN, [PROBE])
        self._has_ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._has_ended:
            for key, _ in self._selector.select(0.05):
                key.data()
            self.received.extend(self._listener.take())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._has_ended = True
        self._thread.join()
        self._listener.close()
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
        wait_until(lambda: loop.received)
        (arrival,) = loop.received
        assert (arrival.kind, arrival.number) == (PROBE, 1234567890)
        arrival.socket.send(b"from the server")
        assert sock.recv(100) == b"from the server"
        sock.close()


def test_a_client_with_a_wrong_token_is_refused():
    with Loop() as loop:
        with pytest.raises(ConnectionError):
            handshake.connect(loop.address, "wrong", PROBE)
        handshake.connect(loop.address, TOKEN, PROBE).close()
        wait_until(lambda: loop.received)
        assert len(loop.received) == 1


def test_a_client_that_wants_another_kind_of_connection_is_refused():
    with Loop() as loop:
        with pytest.raises(ConnectionError):
            handshake.connect(loop.address, TOKEN, ALIVE)
        handshake.connect(loop.address, TOKEN, PROBE).close()
        wait_until(lambda: loop.received)
        assert len(loop.received) == 1


@contextlib.contextmanager
def listening(**options):
    """A port for messages, its address, and a function that waits for arrivals."""
    server, arrived = socket.create_server(("127.0.0.1", 0)), []
    with selectors.DefaultSelector() as selector:
        listener = Listener(selector, server, TOKEN, [MESSAGES], **options)

        def step():
            for key, _ in selector.select(0.05):
                key.data()
            arrived.extend(listener.take())
            return arrived

        yield server.getsockname(), step
        listener.close()
    for arrival in arrived:
        arrival.socket.close()


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


def test_a_client_for_messages_arrives_with_its_first_one():
    with listening() as (address, step):
        said, clients = threading.Event(), []

        def introduce():
            clients.append(Connection(handshake.connect(address, TOKEN, MESSAGES, 3)))
            said.wait()
            clients[0].send(name="h1")

        thread = in_thread(introduce)
        wait_until(lambda: step() or clients)
        assert step() == []
        said.set()
        wait_until(step)
        thread.join()
        (arrival,) = step()
        assert (arrival.number, arrival.header) == (3, {"name": "h1"})
        arrival.connection.send(b"data", answer=1)
        assert clients[0].wait(TIMEOUT) == ({"answer": 1}, [b"data"])
        clients[0].close()


@pytest.mark.parametrize("data", [b"", b"no message " * 10])
def test_a_client_for_messages_without_a_first_one_is_dropped(data):
    with listening(first=0.3) as (address, step):
        socks = []

        def come():
            socks.append(handshake.connect(address, TOKEN, MESSAGES))
            socks[0].sendall(data)

        thread = in_thread(come)
        wait_until(lambda: step() or socks)
        thread.join()
        closed = in_thread(is_closed, socks[0])
        wait_until(lambda: step() or not closed.is_alive())
        assert step() == []
        socks[0].close()


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
    "answer",
    [lambda reply: os.urandom(PROOF), lambda reply: reply[-PROOF:], lambda reply: reply[:PROOF]],
    ids=["guessed", "the client's own", "its nonce"],
)
def test_a_server_without_the_token_is_refused(answer):
    with impostor(answer) as address, pytest.raises(PermissionError, match="the token"):
        handshake.connect(address, TOKEN, PROBE)


def test_a_server_that_is_silent_is_given_up(monkeypatch):
    monkeypatch.setattr(protocol, "LIMIT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        handshake.connect(server.getsockname(), TOKEN, MESSAGES)


def reply_to(nonce):
    own, claim = os.urandom(NONCE), CLAIM.pack(PROBE, 1)
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
        claim = CLAIM.pack(PROBE, 0)
        sock.sendall(own + claim + handshake._proof(TOKEN, b"server", nonce, own, claim))
        assert sock.recv(1) == b""
        sock.close()


def test_a_claim_that_was_changed_on_the_way_is_refused():
    with Loop() as loop:
        sock = socket.create_connection(loop.address)
        reply = bytearray(reply_to(sock.recv(NONCE, socket.MSG_WAITALL)))
        reply[NONCE:-PROOF] = CLAIM.pack(PROBE, 2)
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
        patch.setattr(protocol, "LIMIT", limit)
        socks = [stack.enter_context(socket.create_connection(address)) for _ in STRANGERS]
        for sock, behave in zip(socks, STRANGERS.values(), strict=True):
            assert len(sock.recv(NONCE, socket.MSG_WAITALL)) == NONCE
            behave(sock)
        patch.undo()
        yield socks


def test_strangers_do_not_disturb_the_listener_and_are_dropped(monkeypatch):
    with Loop() as loop, strangers(loop.address, 2.0, monkeypatch) as socks:
        began = time.monotonic()
        handshake.connect(loop.address, TOKEN, PROBE).close()
        wait_until(lambda: loop.received)
        assert all(is_closed(sock) for sock in socks)
        assert time.monotonic() - began < LIMIT
        assert len(loop.received) == 1


def test_one_who_sends_a_byte_now_and_then_is_dropped(monkeypatch):
    monkeypatch.setattr(protocol, "LIMIT", 0.5)
    with Loop() as loop, socket.create_connection(loop.address) as sock:
        end = time.monotonic() + TIMEOUT
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                sock.send(b"x")
                time.sleep(0.1)


@contextlib.contextmanager
def many(address, count):
    """Connects clients that say nothing."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


def test_the_oldest_of_too_many_strangers_is_dropped(monkeypatch):
    monkeypatch.setattr(protocol, "ROOM", 20)
    with Loop() as loop, many(loop.address, 25) as socks:
        handshake.connect(loop.address, TOKEN, PROBE).close()
        wait_until(lambda: loop.received)
        assert all(is_closed(sock) for sock in socks[:6])
        for sock in socks[6:]:
            sock.settimeout(0.01)
            assert len(sock.recv(NONCE)) == NONCE
            with pytest.raises(TimeoutError):
                sock.recv(1)


CROWD = """
import socket, sys
from easyddl.transport import connection as connections
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection
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
            wait_until(lambda: len(loop.received) == 3)
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


def test_strangers_do_not_disturb_the_examination(monkeypatch):
    with Coordinator() as coordinator:
        address = ("127.0.0.1", coordinator.port)
        with strangers(address, 2.0, monkeypatch) as socks:
            agent = Program(agent_line(coordinator.port), coordinator.token)
            wait_until(lambda: "here" in coordinator.agents)
            assert all(is_closed(sock) for sock in socks)
            assert list(coordinator.agents) == ["here"]
    end_all([agent])


def test_strangers_get_no_thread_each():
    with Coordinator() as coordinator, many(("127.0.0.1", coordinator.port), 100) as socks:
        for sock in socks:
            assert len(sock.recv(NONCE, socket.MSG_WAITALL)) == NONCE
        assert threading.active_count() < 10


def agent_line(port):
    line = [sys.executable, "-m", "easyddl.doctor.agent", "--host", "here"]
    return [*line, "--port", str(port), "127.0.0.1"]


def test_the_token_is_not_seen_in_an_examination():
    with Coordinator() as coordinator, Wire(coordinator.port) as wire:
        agent = Program(agent_line(wire.address[1]), coordinator.token)
        wait_until(lambda: "here" in coordinator.agents)
        facts = coordinator.agents["here"].ask("facts").result(TIMEOUT)
        link_ports = LinkPorts(coordinator.token)
        with Wire(link_ports.ports[0]) as other:
            measure = [coordinator.token, *other.address]
            assert probe.measure(*measure, packets=8, seconds=0)["sent"]
            other.has_no(coordinator.token)
        link_ports.close()
        wire.has_no(coordinator.token)
        assert facts["hostname"].encode() in wire.seen[0]  # it has seen what was said
    end_all([agent])


def test_the_token_is_not_seen_between_a_caller_and_its_ranks():
    token = os.urandom(32).hex()
    server, found = listen(None), []
    with selectors.DefaultSelector() as selector, Wire(server.getsockname()[1]) as wire:
        listener, arrivals = Listener(selector, server, token, [MESSAGES]), []

        def connect():
            found.append(call_server.connect(wire.address, token, 0))
            found[0].sendall(connections.pack([], {"said": "hello"}))

        def has_arrived():
            for key, _ in selector.select(0.05):
                key.data()
            arrivals.extend(listener.take())
            return arrivals

        thread = threading.Thread(target=connect)
        thread.start()
        wait_until(has_arrived)
        thread.join()
        listener.close()
        assert [each.header for each in arrivals] == [{"said": "hello"}]
        wait_until(lambda: b"hello" in wire.seen[0])
        wire.has_no(token)
        for sock in [*found, *(each.socket for each in arrivals)]:
            sock.close()


class Port:
    """The port of `easyddl run` and its loop, for one rank on this host."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        placement = Placement([HostSlots("localhost", 1)], "-np", local=True)
        self.reports = Reports(self._selector, Request(["true"]), placement)
        self.settings = json.loads(self.reports.settings())
        (self.address,) = map(tuple, self.settings["addresses"])
        self.reported = []

    def step(self):
        """Waits a moment, and takes in what has come."""
        for key, _ in self._selector.select(0.05):
            key.data()
        self.reported += self.reports.take()
        return len(self.reported)

    def rank(self, *addresses):
        """Starts a rank that reports at one of some addresses."""
        settings = json.dumps({**self.settings, "addresses": addresses})
        return subprocess.Popen(
            [sys.executable, "-m", "easyddl.launch.supervise.rank"],
            env={**os.environ, "EASYDDL_LAUNCH": settings, "PMI_RANK": "0", "PMI_SIZE": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.reports.close()
        for each in self.reported:
            each.socket.close()
        self._selector.close()


def test_the_token_is_not_seen_when_a_rank_reports():
    with Port() as port, Wire(port.address[1]) as wire:
        rank = port.rank(wire.address)
        wait_until(lambda: port.step() == 2)
        assert [each.header["rank"] for each in port.reported if each.connection] == [0]
        for each in port.reported:
            each.socket.close()
        rank.communicate(timeout=TIMEOUT)
        assert socket.gethostname().encode() in wire.seen[0]
        wire.has_no(port.settings["token"])


def test_strangers_do_not_disturb_a_rank_that_reports(monkeypatch):
    with Port() as port:
        has_ended = threading.Event()
        loop = threading.Thread(target=lambda: [port.step() for _ in iter(has_ended.is_set, 1)])
        loop.start()
        with strangers(port.address, 2.0, monkeypatch) as socks:
            rank = port.rank(port.address)
            wait_until(lambda: len(port.reported) == 2)
            assert all(is_closed(sock) for sock in socks)
        has_ended.set()
        loop.join()
    rank.communicate(timeout=TIMEOUT)


def test_a_rank_looks_further_where_a_process_does_not_know_the_token():
    with Port() as port, impostor(lambda reply: reply[-PROOF:]) as address:
        rank = port.rank(address, port.address)
        wait_until(lambda: port.step() == 2)
    rank.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize("how", ["garbage", "end"])
def test_a_rank_ends_when_its_job_sends_garbage_or_ends(how):
    with Port() as port:
        rank = port.rank(port.address)
        wait_until(lambda: port.step() == 2)
        (link,) = (each.connection for each in port.reported if each.connection)
        if how == "garbage":
            link.socket.sendall(b"\xff" * 100)
        else:
            link.close()
        rank.communicate(timeout=TIMEOUT)
    assert rank.returncode == 1
