"""The standard output or standard error of a rank, as the caller receives it."""

import codecs

_READ = 1 << 16  # bytes


class OutputStream:
    """Text that a rank writes, with marks at the ends of the calls.

    A rank writes a mark after everything that it wrote in a call, so that the caller knows when it
    has received all of it. The mark is random bytes that nothing else writes.

    Args:
        sock: A non-blocking socket.
        mark: Bytes. It begins with a zero byte.
    """

    def __init__(self, sock, mark):
        self.sock = sock
        self.marks = 0  # received
        self.received = 0  # bytes
        self._mark = mark
        self._held = b""  # the beginning of what may be a mark
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def receive(self):
        """Reads once.

        Returns:
            String, without marks.

        Raises:
            EOFError: If the rank has closed the stream.
        """
        data = self.sock.recv(_READ)
        if not data:
            raise EOFError("The rank has closed its output.")
        self.received += len(data)
        *before, rest = (self._held + data).split(self._mark)
        self.marks += len(before)
        kept = self._beginning_of_mark(rest)
        self._held = rest[len(rest) - kept :]
        return self._decoder.decode(b"".join([*before, rest[: len(rest) - kept]]))

    def _beginning_of_mark(self, data):
        """The length of the longest end of the data with which a mark may begin."""
        start = data.find(b"\0", max(0, len(data) - len(self._mark) + 1))
        while start >= 0:
            if self._mark.startswith(data[start:]):
                return len(data) - start
            start = data.find(b"\0", start + 1)
        return 0
