"""Connections that carry messages over TCP. `protocol` describes a message."""

import collections
import errno
import itertools
import json
import mmap
import os
import select
import selectors
import socket
import struct
import threading
import time
import typing

from easyddl.transport.protocol import LARGEST, PREFIX, SIZE

_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_READ = 1 << 16  # bytes to read at once, unless a buffer needs more
_AT_ONCE = 64  # buffers to pass to the kernel in one call
_SMALL = 1 << 13  # smaller buffers are copied, so that one call sends several
_MAPPED = 1 << 20  # the memory of buffers from this size on comes from mmap
ENDED = "it ended"  # the reason if the other side has closed the connection
SILENT = "it does not answer"  # the reason if the other host does not answer
_PROBES = 4  # without an answer until the other host counts as lost
_NO_MESSAGE = "received data that is not a valid message"


class ConnectionLost(Exception):
    """The other side has closed the connection, or does not answer any more.

    The cause of the exception is the error of the operating system, if there was one.

    Args:
        text: String. The reason why the connection has ended.
    """


class Message(typing.NamedTuple):
    """A message that has arrived.

    Attributes:
        header: Dictionary.
        buffers: List of writable buffers of bytes.
    """

    header: dict[str, typing.Any]
    buffers: list[typing.Any]


class Connection:
    """A connection that carries messages. Several threads may send; one thread receives.

    A signal handler may send too, even if it interrupts `send`. Only `wait`, and `flush` with a
    time, block.

    Args:
        sock: Connected socket, which this object closes.
        largest: Integer. The maximal number of bytes of a received message; `None` for no limit.
    """

    def __init__(self, sock, largest=LARGEST):
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self._unsent = collections.deque()  # bytes that the kernel has not accepted yet
        self._sending = threading.Lock()
        self._send_error = None  # that the other host does not answer
        self._incoming = Incoming(largest)
        self._arrived = collections.deque()  # messages for `wait`
        self._selector = None

    @property
    def unsent(self):
        """The number of bytes that the kernel has not accepted yet."""
        return sum(map(len, list(self._unsent)))

    def send(self, *buffers, **header):
        """Sends a message. Bytes that the kernel does not accept now are kept for `flush`.

        Args:
            *buffers: Buffers of bytes. They must not change until they are sent.
            **header: The entries of the header, which JSON can represent.
        """
        parts = [bytearray(pack(buffers, header))]
        for buffer in buffers:
            if len(buffer) >= _SMALL:
                parts += buffer, bytearray()
            else:
                parts[-1] += buffer  # one call sends many small buffers
        # `extend` is atomic, so no other thread can add a message between these parts.
        self._unsent.extend([memoryview(each) for each in parts if len(each)])
        self._write()

    def flush(self, seconds=0.0):
        """Sends the rest of earlier messages. `receive` reports errors.

        Args:
            seconds: Number. How long to wait until the kernel accepts all bytes; `None` for no
                limit.

        Returns:
            Boolean. Whether all bytes have been sent.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            self._write()
            left = None if end is None else end - time.monotonic()
            if not self._unsent or (left is not None and left <= 0):
                return not self._unsent
            _is_ready(self.socket, select.POLLOUT, left)

    def receive(self):
        """Returns the messages that have arrived since the last call, as a list of `Message`.

        Raises:
            ConnectionLost: If the connection has ended. All earlier messages have been returned.
        """
        if self._arrived:  # `wait` received more messages than it returned
            arrived, self._arrived = list(self._arrived), collections.deque()
            return arrived
        self._write()
        incoming = self._incoming
        is_large = len(incoming.target) >= _READ
        try:
            got = self.socket.recv_into(incoming.target) if is_large else self.socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionLost(reason_of(error)) from error
        if not got:
            # The socket reports an error only once, and sending may have received it.
            silent = self._send_error
            raise ConnectionLost(reason_of(silent) if silent else ENDED)
        try:
            return incoming.filled(got) if is_large else incoming.add(got)
        except ValueError as error:
            raise ConnectionLost(str(error)) from None

    def wait(self, seconds=None):
        """Waits for the next message.

        Args:
            seconds: Number. The seconds after which a silent connection is an error; `None` for no
                limit.

        Returns:
            `Message`.

        Raises:
            ConnectionLost: If the connection has ended.
            TimeoutError: If no data have arrived in time.
        """
        while not self._arrived:
            if not _is_ready(self.socket, select.POLLIN, seconds):
                raise TimeoutError("timed out")
            self._arrived.extend(self.receive())
        return self._arrived.popleft()

    def watch(self, selector, ready):
        """Makes an event loop call a function when data have arrived.

        The function must call `receive`, which also sends the rest of earlier messages.

        Args:
            selector: The selector of the loop. The loop calls the data of each ready key.
            ready: Function without arguments.
        """
        selector.register(self.socket, selectors.EVENT_READ, ready)
        self._selector = selector
        self.flush()

    def unwatch(self):
        """Removes the connection from the event loop."""
        with self._sending:
            if self._selector is not None:
                self._selector.unregister(self.socket)
                self._selector = None

    def close(self):
        """Closes the connection."""
        self.unwatch()
        self.socket.close()

    def _write(self):
        """Passes as many bytes to the kernel as it accepts now.

        If another thread, or a frame that a signal has interrupted, already writes, this returns at
        once. The other one checks for added bytes after it has released the lock.
        """
        is_blocked = False
        while self._unsent and not is_blocked and self._sending.acquire(blocking=False):
            try:
                is_blocked = not self._write_all()
                self._watch_room()
            finally:
                self._sending.release()

    def _write_all(self):
        """Writes, and returns whether the kernel accepted all bytes. The caller holds the lock."""
        try:
            while self._unsent:
                sent = self.socket.sendmsg(list(itertools.islice(self._unsent, _AT_ONCE)))
                while sent:
                    first = self._unsent.popleft()
                    if sent < len(first):
                        self._unsent.appendleft(first[sent:])
                    sent -= min(sent, len(first))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno in _SILENT:
                self._send_error = error
            self._unsent.clear()
        return True

    def _watch_room(self):
        """Makes the loop wake when the kernel accepts more bytes. The caller holds the lock."""
        if self._selector is not None:
            key = self._selector.get_key(self.socket)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if key.events != events:
                self._selector.modify(self.socket, events, key.data)


class Incoming:
    """Assembles messages from the bytes that arrive on a connection.

    The memory for a buffer is allocated when its first bytes arrive, not when the header announces
    it.

    Args:
        largest: Integer. The maximal number of bytes of a message; `None` for no limit.

    Attributes:
        target: The memory for the next bytes.
    """

    def __init__(self, largest=LARGEST):
        self._largest = largest
        self._complete = []
        self._steps = self._assemble()
        self.target = next(self._steps)

    def add(self, data):
        """Adds data, and returns the messages that are now complete, as a list of `Message`.

        Raises:
            ValueError: If the bytes are not messages, or a message is too large.
        """
        data, complete = memoryview(data), []
        while data:
            size = min(len(data), len(self.target))
            self.target[:size] = data[:size]
            complete += self.filled(size)
            data = data[size:]
        return complete

    def filled(self, size):
        """Records that the first bytes of `target` have arrived. Returns and raises as `add` does.

        Args:
            size: Integer. The number of bytes.
        """
        self.target = self.target[size:]
        if self.target:
            return []
        try:
            self.target = next(self._steps)
        except (ValueError, MemoryError, OSError, OverflowError, RecursionError):
            raise ValueError(_NO_MESSAGE) from None
        complete, self._complete = self._complete, []
        return complete

    def _assemble(self):
        """Yields the memory to fill next, which is never empty."""
        while True:
            prefix = bytearray(PREFIX.size)
            yield memoryview(prefix)
            size, count = PREFIX.unpack(prefix)
            head = self._memory(SIZE.size * count + size)
            yield head
            sizes = struct.unpack_from(f"!{count}Q", head)
            self._check(len(head) + sum(sizes))
            header = json.loads(bytes(head[SIZE.size * count :]))
            if not isinstance(header, dict):
                raise ValueError(_NO_MESSAGE)
            buffers = []
            for each in sizes:
                buffers.append(self._memory(each))
                if each:
                    yield buffers[-1]
            self._complete.append(Message(header, buffers))

    def _memory(self, size):
        """Allocates memory. Pages of a large buffer are in use only after they are written."""
        self._check(size)
        if size < _MAPPED:
            return memoryview(bytearray(size))
        return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def _check(self, size):
        if self._largest is not None and size > self._largest:
            raise ValueError(_NO_MESSAGE)


def pack(buffers, header):
    """Returns the beginning of a message: all bytes before its buffers.

    Args:
        buffers: Sequence of buffers of bytes.
        header: Dictionary that JSON can represent.
    """
    text = json.dumps(header).encode()
    sizes = struct.pack(f"!{len(buffers)}Q", *map(len, buffers))
    return PREFIX.pack(len(text), len(buffers)) + sizes + text


def reason_of(error):
    """Returns the reason why a connection has ended, for a message."""
    if error.errno in _SILENT or isinstance(error, TimeoutError):
        return SILENT
    return os.strerror(error.errno) if error.errno else str(error)


def keep_alive(sock, seconds):
    """Makes the kernel end an idle connection if the other host does not answer for some time.

    The kernel of the other host answers, not its process, so a stopped or busy process does not
    count as lost. The connection must carry no data: the kernel repeats data that are not
    acknowledged for many minutes, and sends no keep-alive probes meanwhile.

    Args:
        sock: Connected socket.
        seconds: Number. The time without an answer after which the connection ends.
    """
    interval = _interval(seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _interval(seconds):
    return max(1, round(seconds / (_PROBES + 1)))


def longest_silence(seconds):
    """Returns the seconds after which `keep_alive` has ended a connection for sure."""
    return _interval(seconds) * (_PROBES + 1)


def end_if_unanswered(sock, seconds):
    """Makes the kernel end a connection, idle or not, if the other host does not answer.

    Args:
        sock: Connected socket.
        seconds: Integer. The time without an answer after which the connection ends.
    """
    keep_alive(sock, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)


def _is_ready(sock, event, seconds):
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
