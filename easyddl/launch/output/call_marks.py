"""The marks by which a rank of `easyddl.Ranks` separates the outputs of its calls."""


class CallMarks:
    """Finds the marks in the standard output or standard error of a rank.

    The rank writes a mark when it has connected to its caller, and after each call. So the caller
    knows when it has received all output of a call. The mark is random bytes.

    Args:
        mark: Bytes. They begin with a zero byte.
    """

    def __init__(self, mark):
        self._mark = mark
        self._held = b""  # may be the first part of a mark

    def split(self, data):
        """Returns a list of the output between marks, with `None` for each mark.

        Args:
            data: Bytes that follow those of the last call of this method.
        """
        *before, rest = (self._held + data).split(self._mark)
        pieces = [each for piece in before for each in (piece, None)]
        kept = self._beginning_of_mark(rest)
        self._held = rest[len(rest) - kept :]
        return [each for each in (*pieces, rest[: len(rest) - kept]) if each != b""]

    def rest(self):
        """Returns what is held back because a mark may begin with it, and forgets it."""
        held, self._held = self._held, b""
        return held

    def _beginning_of_mark(self, data):
        """Returns the length of the longest end of the data with which a mark may begin."""
        start = data.find(b"\0", max(0, len(data) - len(self._mark) + 1))
        while start >= 0:
            if self._mark.startswith(data[start:]):
                return len(data) - start
            start = data.find(b"\0", start + 1)
        return 0
