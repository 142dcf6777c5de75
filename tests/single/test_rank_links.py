import contextlib
import os
import socket
import threading
import time

import pytest

from easyddl.launch import handshake, link
from easyddl.launch.output_stream import OutputStream
from easyddl.launch.welcome import Welcome, listen

TOKEN = "a secret"


def welcome_of(size):
    server = listen(None)
    return Welcome(size, TOKEN, server), server.getsockname()


def wait_for(welcome, condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        welcome.wait()


def come(address, token, rank, found):
    for kind in (link.CONTROL, link.STDOUT, link.STDERR):
        try:
            found.append(link.connect(address, token, kind, rank))
        except ConnectionError as error:
            found.append(error)


def test_ranks_that_know_the_token_are_received():
    welcome, address = welcome_of(2)
    assert address[0] == "127.0.0.1"
    found = []
    threads = [
        threading.Thread(target=come, args=(address, TOKEN, rank, found)) for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_for(welcome, lambda: not welcome.missing())
    for thread in threads:
        thread.join()
    welcome.close()
    assert sorted(welcome.connections) == [(rank, kind) for rank in range(2) for kind in range(3)]
    for sock in [*found, *welcome.connections.values()]:
        sock.close()


def test_strangers_are_refused_while_ranks_are_received():
    welcome, address = welcome_of(1)
    silent = socket.create_connection(address)
    noisy = socket.create_connection(address)
    noisy.sendall(os.urandom(1000))
    wrong, right = [], []
    threads = [
        threading.Thread(target=come, args=(address, "a guess", 0, wrong)),
        threading.Thread(target=come, args=(address, TOKEN, 0, right)),
    ]
    for thread in threads:
        thread.start()
    wait_for(welcome, lambda: len(welcome.connections) == 3 and len(wrong) == 3)
    for thread in threads:
        thread.join()
    assert all(isinstance(each, ConnectionError) for each in wrong)
    welcome.close()
    assert len(silent.recv(100)) == handshake.NONCE and silent.recv(100) == b""
    for sock in [silent, noisy, *right, *welcome.connections.values()]:
        sock.close()


def test_a_caller_that_does_not_know_the_token_is_refused():
    server = socket.create_server(("127.0.0.1", 0))

    def pretend():
        sock, _ = server.accept()
        with sock:
            sock.sendall(os.urandom(handshake.NONCE))
            sock.recv(handshake.NONCE + link.CLAIM.size + handshake.PROOF, socket.MSG_WAITALL)
            sock.sendall(os.urandom(handshake.PROOF))

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(ConnectionError, match="does not know their token"):
        link.connect(server.getsockname(), TOKEN, link.CONTROL, 0)
    thread.join()
    server.close()


def test_two_processes_of_one_rank():
    welcome, address = welcome_of(2)
    found = []
    threads = [threading.Thread(target=come, args=(address, TOKEN, 0, found)) for _ in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(RuntimeError, match="Two processes are rank 0"):
        wait_for(welcome, lambda: not welcome.missing())
    welcome.close()
    for sock in welcome.connections.values():
        sock.close()
    for thread in threads:
        thread.join()
    for sock in found:
        if not isinstance(sock, ConnectionError):
            sock.close()


def test_messages_arrive_whole():
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    sent = [[b"a"], [b"", b"x" * 3_000_000, bytearray(b"yz")], [b"", b""], [os.urandom(70_000)]]
    outbox, inbox, arrived = link.Outbox(), link.Inbox(), []
    for message in sent:
        outbox.put(message)
    while len(arrived) < len(sent):
        with contextlib.suppress(BlockingIOError):
            outbox.send(near)
        with contextlib.suppress(BlockingIOError):
            arrived += filter(None, [inbox.receive(far)])
    assert arrived == sent and not outbox
    near.close()
    with pytest.raises(EOFError):
        inbox.receive(far)
    far.close()


def test_marks_are_found_wherever_they_are_cut():
    mark = b"\0mark\0of\0a\0call"
    data = "one ━ two\0".encode() + mark + b"\0ma three" + mark + mark
    for size in range(1, len(data) + 1):
        near, far = socket.socketpair()
        stream, text = OutputStream(far, mark), ""
        for start in range(0, len(data), size):
            near.sendall(data[start : start + size])
            text += stream.receive()
        near.close()
        with pytest.raises(EOFError):
            stream.receive()
        assert text == "one ━ two\0\0ma three" and stream.marks == 3
        far.close()
