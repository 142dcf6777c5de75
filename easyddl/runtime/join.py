"""How ranks that are out of batches join the steps that the other ranks take."""

import collections
import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class JoinState:
    """What the steps of an epoch have told this rank about the other ranks.

    Attributes:
        missed: Integer. The steps that others took while this rank had no batch.
        uneven: Boolean. Whether any rank had none in a step that others took. The same on all
            ranks.
        stop: Boolean. Whether any rank has asked all to stop. The same on all ranks.
    """

    missed: int = 0
    uneven: bool = False
    stop: bool = False


class Join:
    """The reducers that the steps of a model go through, by which ranks learn of each other.

    The first bucket of every step carries a control word. It says which ranks have no batch, and
    which ask all to stop, so that neither costs a collective of its own: see
    `ext/reducer/control_word.h`.

    It belongs to a compiled step, and serves all fits that take this step.

    Attributes:
        steps: Integer. How many steps have been traced or, in eager mode, taken.
        goes_on: Boolean. Whether an epoch goes on for ranks that have batches when others have
            none.
    """

    def __init__(self):
        self.goes_on = True
        self.steps = 0
        self._reducers = {}  # of the engine's, by number
        self._leading = {}  # those that all steps go through, which tell the step's number
        self._sums = {}  # what the step adds up besides gradients, by place and kind
        self._places = None  # how many sums of a kind the current step has made; None between steps
        self._ends = False

    def begin_fit(self):
        """Called as a fit begins that takes these steps."""
        self._ends = False

    def close(self):
        """Ends the sums of its steps, which no later fit may use."""
        for each in self._sums.values():
            each.close()
        self._sums.clear()

    def note(self, reducer, leads=True):
        """Records that the current step goes through a reducer of the engine's.

        What a callback reduces between steps belongs to no step. A model without a `train_step`
        that is called announces no step: then every reducer counts.

        Args:
            reducer: `_core.Exchange` or `_core.StepSum`.
            leads: Boolean. Whether all steps go through it, as through that of the gradients.
        """
        if not self.is_in_step and self.steps > 0:
            return
        self._reducers[reducer.number] = reducer
        if leads:
            self._leading[reducer.number] = reducer

    def announcing(self, train_step):
        """A `train_step` that announces when a step begins and ends: see `is_in_step`."""

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

    def sum_at_this_place(self, kind, make):
        """The sum of a kind at this place of the step. It lives as long as the compiled step.

        A rank may trace a step again by itself. It then finds what all ranks registered when they
        traced the step first.

        Args:
            kind: Tuple, such as what is added up and its shape.
            make: Function of the number of the place that registers a new sum, with a `close`.
        """
        place = self._places[kind]
        self._places[kind] += 1
        if (place, kind) not in self._sums:
            self._sums[place, kind] = make(place)
        return self._sums[place, kind]

    @property
    def has_gradients(self):
        """Whether steps have averaged gradients."""
        return bool(self._leading)

    @property
    def state(self):
        """`JoinState` of the steps since the epoch began."""
        states = [reducer.seen for reducer in self._reducers.values()]
        if not states:
            return JoinState()
        missed, uneven, stop = zip(*states, strict=True)
        # The engine returns the number of the step in which it heard; 0 stands for none.
        return JoinState(max(missed), any(uneven), any(stop))

    @property
    def waited(self):
        """Seconds for which the steps so far have stood still for other ranks.

        `None` where that is not known, because gradients lie on GPUs.
        """
        seconds = [reducer.waited for reducer in self._reducers.values()]
        return None if None in seconds else sum(seconds)

    def ends_after_step(self, stop):
        """Called when a step has ended, and all callbacks have seen it.

        Args:
            stop: Boolean. Whether this rank is to stop.

        Returns:
            Boolean: whether the epoch ends here. A rank that is to stop does so one step later, as
            soon as all ranks know of it, so that all stop after the same step.
        """
        self._ask_to_stop(stop)
        state = self.state
        self._ends = state.stop or (state.uneven and not self.goes_on)
        return self._ends

    def ends_by_step(self, number, stop):
        """Called while later steps may have begun already.

        Ranks run ahead by different numbers of steps. So the number of the step that carried the
        news decides, not the time at which this rank reads it.

        Args:
            number: Integer. A step that is done, counted from 1 since the epoch began.
            stop: Boolean. Whether this rank is to stop.

        Returns:
            Boolean: whether that step, or one before it, has told that the epoch ends.
        """
        self._ask_to_stop(stop)
        for reducer in self._leading.values():
            _, uneven, stopped = reducer.seen
            steps = [stopped] if self.goes_on else [stopped, uneven]
            self._ends = self._ends or any(0 < step <= number for step in steps)
        return self._ends

    def _ask_to_stop(self, stop):
        if stop and not self._ends:
            for reducer in self._reducers.values():
                reducer.ask_to_stop(True)

    def join_others(self, stop):
        """Takes part in the others' steps, adding nothing, until no rank has a batch.

        All ranks must call it after their last step of an epoch. It waits for as long as others
        train.

        Args:
            stop: Boolean. Whether this rank is to stop.

        Returns:
            `JoinState` of the epoch.
        """
        self._ask_to_stop(stop)
        reducers = list(self._reducers.values())
        # All at once: a step goes through several reducers, each with its own thread that joins.
        for reducer in reducers:
            reducer.join()
        for reducer in reducers:
            reducer.wait_for_all()
        state = self.state
        for reducer in reducers:
            reducer.forget()
        self._ends = False
        return state
