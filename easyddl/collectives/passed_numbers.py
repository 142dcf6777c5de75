"""How many numbers the script has passed to other ranks, by which updates alone are recognised."""

from easyddl.runtime import world


class PassedNumbers:
    """Counts the numbers that the script passes to collectives.

    They may be gradients or weights, one by one or together, so only their number is compared with
    that of the gradients of an update.
    """

    def __init__(self):
        self._since_update = 0
        self._in_traces = 0  # those in traced functions, which reduce again without a call
        self._awaited = None  # a number, and what to call when as many have been passed

    def add(self, count):
        """Counts the argument of a collective, if the script has called it."""
        if not world.is_in_call_of_script():
            return
        self._since_update += count
        if self._awaited is not None and self._since_update >= self._awaited[0]:
            (_, act), self._awaited = self._awaited, None
            self._since_update = 0
            act()

    def add_traced(self, count):
        """Counts the argument of a reduction in a function that is being traced."""
        self._in_traces += count

    def take(self, count):
        """Returns whether as many numbers were passed since the last update, and forgets them."""
        enough = self._since_update + self._in_traces >= count
        self._since_update = max(0, self._since_update - count) if enough else 0
        return enough

    def when_passed(self, count, act):
        """Calls `act` once, as soon as so many numbers have been passed between two updates."""
        self._awaited = count, act


passed = PassedNumbers()  # by the script, which is one in a process
