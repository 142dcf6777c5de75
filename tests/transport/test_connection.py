"""Messages: that they arrive whole, and what is no message."""

import os
import resource
import selectors
import socket
import struct
import threading
import time

import pytest

from easyddl.transport import connection as connections
from easyddl.transport import protocol
from easyddl.transport.connection import ENDED, Connection, ConnectionLost, Incoming

TIMEOUT = 60


def linked(largest=None):
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return Connection(client, largest), Connection(server.accept()[0], largest)


@pytest.fixture
def ends():
    both = linked()
    yield both
    for each in both:
        each.close()


def packed(*buffers, **header):
    return connections.pack(buffers, header) + b"".join(buffers)


def test_messages_arrive_in_order(ends):
    client, server = ends
    client.send(a="x" * 100_000)
    client.send(b"one", b"", b=[1, None])
    client.send()
    client.flush(TIMEOUT)
    assert server.wait(TIMEOUT) == ({"a": "x" * 100_000}, [])
    assert server.wait(TIMEOUT) == ({"b": [1, None]}, [b"one", b""])
    assert server.wait(TIMEOUT) == ({}, [])
    client.close()
    with pytest.raises(ConnectionLost, match=ENDED):
        server.wait(TIMEOUT)


def test_a_silent_connection_is_an_error(ends):
    with pytest.raises(TimeoutError):
        ends[0].wait(0.05)


def test_messages_arrive_whole_in_a_loop(ends):
    near, far = ends
    sent = [[b"a"], [b"", b"x" * 30_000_000, bytearray(b"yz")], [b"", b""], [os.urandom(70_000)]]
    sent += [[b"%d" % number for number in range(300)]]
    arrived = []
    with selectors.DefaultSelector() as selector:
        near.watch(selector, near.receive)
        far.watch(selector, lambda: arrived.extend(far.receive()))
        for number, buffers in enumerate(sent):
            near.send(*buffers, number=number)
        assert near.unsent
        end = time.monotonic() + TIMEOUT
        while len(arrived) < len(sent) and time.monotonic() < end:
            for key, _ in selector.select(TIMEOUT):
                key.data()
        assert selector.select(0) == []  # it does not wake for what has been sent
        near.unwatch()
        far.unwatch()
    assert arrived == [({"number": number}, buffers) for number, buffers in enumerate(sent)]
    assert not near.unsent and near.flush()


def test_several_threads_send(ends):
    near, far = ends

    def send(thread):
        for number in range(100):
            near.send(bytes(10_000), thread=thread, number=number)
            near.flush(TIMEOUT)

    threads = [threading.Thread(target=send, args=[each]) for each in range(3)]
    for thread in threads:
        thread.start()
    found = [far.wait(TIMEOUT) for _ in range(300)]
    for thread in threads:
        thread.join()
    for each in range(3):
        numbers = [header["number"] for header, _ in found if header["thread"] == each]
        assert numbers == list(range(100))
    assert all(buffers == [bytes(10_000)] for _, buffers in found)


def test_a_signal_handler_sends_while_it_interrupts_a_send(ends):
    near, far = ends

    class Interrupted:
        """A socket in whose calls a signal arrives."""

        def __init__(self):
            self.left = 3

        def sendmsg(self, buffers):
            sent = near_socket.sendmsg(buffers)
            if self.left:
                self.left -= 1
                near.send(b"y" * 10_000, number=self.left)
            return sent

    near_socket, near.socket = near.socket, Interrupted()
    near.send(b"x" * 10_000, number=3)
    near.socket = near_socket
    assert not near.unsent
    for number, letter in zip((3, 2, 1, 0), (b"x", b"y", b"y", b"y"), strict=True):
        assert far.wait(TIMEOUT) == ({"number": number}, [letter * 10_000])


def test_many_small_buffers_are_sent_with_few_calls(ends):
    near, far = ends
    buffers = [b"%d" % number for number in range(30_000)]
    begin = time.monotonic()
    near.send(*buffers)
    near.flush(TIMEOUT)
    assert len(far.wait(TIMEOUT).buffers) == 30_000
    assert time.monotonic() - begin < TIMEOUT / 4


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_messages_do_not_depend_on_how_data_arrive(size):
    rest = packed(b"pq", c=2)
    text = packed(a=1) + packed(b"", b"y" * 3000, b"x" * 3000) + rest[:-1]
    incoming, found = Incoming(), []
    for begin in range(0, len(text), size):
        found += incoming.add(text[begin : begin + size])
    assert found == [({"a": 1}, []), ({}, [b"", b"y" * 3000, b"x" * 3000])]
    assert incoming.add(rest[-1:]) == [({"c": 2}, [b"pq"])]


def with_header(header, *sizes):
    data = protocol.PREFIX.pack(len(header), len(sizes))
    return data + struct.pack(f"!{len(sizes)}Q", *sizes) + header


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100),
        with_header(b"no JSON"),
        with_header(b"\xff\xff"),
        with_header(b"[1]"),
        with_header(b"[" * 100_000),
        with_header(b"{}", protocol.LARGEST),
        with_header(b"{}", 1 << 25, 1 << 25),
        protocol.PREFIX.pack(protocol.LARGEST + 1, 0),
        protocol.PREFIX.pack(2, protocol.LARGEST // 8),
    ],
)
def test_what_is_no_message_is_an_error(data):
    with pytest.raises(ValueError, match="not a valid message"):
        Incoming().add(data)


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1])
def test_what_no_memory_can_hold_is_an_error(size):
    with pytest.raises(ValueError, match="not a valid message"):
        Incoming(None).add(with_header(b"{}", size))


def test_what_was_announced_takes_no_memory_before_it_arrives():
    incoming, before = Incoming(None), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    incoming.add(with_header(b"{}", *[1 << 20] * 2000, 1 << 31))
    incoming.add(bytes(1 << 22))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 15  # KiB


def test_the_time_for_a_message_is_in_proportion_to_its_size():
    data, found = packed(b"x" * (1 << 22), *[b"y"] * 10_000), []
    incoming, begin = Incoming(), time.monotonic()
    for start in range(0, len(data), 16):
        found += incoming.add(data[start : start + 16])
    assert len(found[0].buffers) == 10_001
    assert time.monotonic() - begin < TIMEOUT


def test_a_lost_connection_has_its_reason():
    near, far = linked()
    linger = struct.pack("ii", 1, 0)
    near.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    near.close()  # which resets the connection
    with pytest.raises(ConnectionLost, match="Connection reset by peer") as caught:
        far.wait(TIMEOUT)
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    far.send(a=1)  # does not fail: the receiver learns of the end
    assert far.flush() and not far.unsent
    far.close()
