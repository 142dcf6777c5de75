"""Who takes part in the steps of a fit: a rank that is out of batches joins the others' steps."""

import collections
import dataclasses
import functools

_under_way = []


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the steps of an epoch have told this rank of the others.

    Attributes:
        missed: Integer. The steps that others took while this rank had no batch.
        uneven: Boolean. Whether any rank had none in a step that others took. The same on all
            ranks.
        stop: Boolean. Whether any rank has asked all to stop. The same on all ranks.
    """

    missed: int = 0
    uneven: bool = False
    stop: bool = False


class Attendance:
    """The exchanges that the steps of one fit go through, with which ranks learn of each other.

    Every step's first bucket carries a control word. So a rank that has no batch, or that asks
    all to stop, costs no collective of its own: see `ext/exchange.h`.

    As a context manager it notes the exchanges that are used in it. It may be entered again, for
    a fit that takes the same compiled step: then it knows them already.

    Attributes:
        steps: Integer. How many steps have been traced or, in eager mode, taken.
        goes_on: Boolean. Whether an epoch goes on for ranks that have batches when others have
            none.
    """

    def __init__(self):
        self.goes_on = True
        self._exchanges = {}
        self._leading = {}  # those of these that tell which step is which
        self._sums = {}  # what the step adds up besides gradients, by place and kind
        self.steps = 0
        self._places = None  # of what it has added up so far, within a step
        self._ends = False

    def __enter__(self):
        _under_way.append(self)
        self._ends = False
        return self

    def __exit__(self, *error):
        _under_way.remove(self)

    def close(self):
        """Ends the sums of its steps, which no later fit must meet."""
        for each in self._sums.values():
            each.close()
        self._sums.clear()

    def add(self, exchange, leads=True):
        """Notes that the steps go through an exchange of the engine's.

        Args:
            exchange: `_core.Exchange`.
            leads: Boolean. Whether all steps go through it, as through that of the gradients.
        """
        self._exchanges[exchange.number] = exchange
        if leads:
            self._leading[exchange.number] = exchange

    def attended(self, train_step):
        """A `train_step` that adds up tensors by way of the exchanges: see `sum_in_step`."""

        @functools.wraps(train_step)
        def step(*arguments):
            self.steps += 1
            self._places = collections.Counter()
            try:
                return train_step(*arguments)
            finally:
                self._places = None

        return step

    @property
    def is_in_step(self):
        """Whether a step is being traced or, in eager mode, taken."""
        return self._places is not None

    def sum_in_step(self, kind, make):
        """What adds up tensors of a kind at this place of the step. It lives as long as the step.

        A step that is traced again, by one rank alone, finds what the ranks have registered when
        they traced it first.

        Args:
            kind: Tuple, such as what is added up and its shape.
            make: Function of the number of the place that registers a new one, with a `close`.
        """
        place = self._places[kind]
        self._places[kind] += 1
        if (place, kind) not in self._sums:
            self._sums[place, kind] = make(place)
        return self._sums[place, kind]

    @property
    def has_gradients(self):
        """Whether steps have exchanged gradients."""
        return bool(self._leading)

    @property
    def seen(self):
        """What the steps since the last `join` have told."""
        told = [exchange.seen for exchange in self._exchanges.values()]
        if not told:
            return Seen()
        missed, uneven, stop = zip(*told, strict=True)
        # Of the engine's these two are steps.
        return Seen(max(missed), any(uneven), any(stop))

    @property
    def waited(self):
        """Seconds for which the steps so far have stood still for the exchanges.

        `None` where that is not known, because gradients lie on GPUs.
        """
        each = [exchange.waited for exchange in self._exchanges.values()]
        return None if None in each else sum(each)

    def after_step(self, stop):
        """Called when a step has ended, and all callbacks have seen it.

        Args:
            stop: Boolean. Whether this rank is to stop.

        Returns:
            Boolean: whether the epoch ends here. A rank that is to stop does so one step later, as
            soon as all have learnt of it, so that all stop after the same step.
        """
        self._ask_to_stop(stop)
        seen = self.seen
        self._ends = seen.stop or (seen.uneven and not self.goes_on)
        return self._ends

    def by_step(self, number, stop):
        """Called while steps may still be under way that have been begun.

        How far they are differs by rank. So what counts is which step has told, not when it is
        heard.

        Args:
            number: Integer. A step that is done, counted from 1 since the last `join`.
            stop: Boolean. Whether this rank is to stop.

        Returns:
            Boolean: whether that step, or one before it, has told that the epoch ends.
        """
        self._ask_to_stop(stop)
        for exchange in self._leading.values():
            _, uneven, stopped = exchange.seen
            told = [stopped, *([] if self.goes_on else [uneven])]
            self._ends = self._ends or any(0 < step <= number for step in told)
        return self._ends

    def _ask_to_stop(self, stop):
        if stop and not self._ends:
            for exchange in self._exchanges.values():
                exchange.ask_to_stop(True)

    def join(self, stop):
        """Takes part in the others' steps, adding nothing, until no rank has a batch.

        All ranks must call it after their last step. It waits for as long as others train.

        Args:
            stop: Boolean. Whether this rank is to stop.

        Returns:
            `Seen`.
        """
        self._ask_to_stop(stop)
        exchanges = list(self._exchanges.values())
        # All at once: a step goes through several of them, and their threads take part in each.
        for exchange in exchanges:
            exchange.join()
        for exchange in exchanges:
            exchange.wait_for_all()
        seen = self.seen
        for exchange in exchanges:
            exchange.forget()
        self._ends = False
        return seen


def current():
    """That of the innermost fit under way, or `None`."""
    return _under_way[-1] if _under_way else None


def require_all(what):
    """Raises an error if some ranks have no batch in the step that is under way.

    They are not where the others are, and would never come.

    Args:
        what: String. What all ranks would have to call.
    """
    if _under_way and _under_way[-1].seen.uneven:
        raise RuntimeError(
            f"{what} needs all ranks, and some have no more batches in this epoch of model.fit(). "
            "Call it at the end of an epoch, or give all ranks as many batches."
        )


def note(exchange, leads=True):
    """Tells the innermost fit that its steps go through an exchange of the engine's.

    What a callback exchanges between steps is none of them. A step that nobody has announced, since
    the model has no `train_step` that is called, cannot be told from that.
    """
    if _under_way and (_under_way[-1].is_in_step or _under_way[-1].steps == 0):
        _under_way[-1].add(exchange, leads)
