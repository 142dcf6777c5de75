"""How ranks that have no more batches join the steps of the other ranks."""

import collections
import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class JoinState:
    """What this rank has learned about the other ranks in the steps of an epoch.

    Attributes:
        missed: Integer. The number of steps that other ranks took while this rank had no batch.
        uneven: Boolean. Whether any rank had no batch in a step that other ranks took. The same on
            all ranks.
        stop: Boolean. Whether any rank has asked all ranks to stop. The same on all ranks.
    """

    missed: int = 0
    uneven: bool = False
    stop: bool = False


class Join:
    """The reducers of a model's steps, which carry the state of each rank to the other ranks.

    The first bucket of every step carries a control word. It counts the ranks that have a batch and
    the ranks that ask to stop, so that neither needs a collective of its own: see
    `ext/reducer/control_word.h`.

    A `Join` belongs to a compiled step, and serves all fits that run this step.

    Attributes:
        steps: Integer. The number of steps that have been traced or, in eager mode, taken.
        goes_on: Boolean. Whether an epoch continues on ranks that have batches when other ranks
            have none.
    """

    def __init__(self):
        self.goes_on = True
        self.steps = 0
        self._reducers = {}  # the engine's reducers, by number
        self._leading = {}  # the reducers that every step uses, which know the step's number
        self._sums = {}  # the sums inside of the step, by place and kind
        self._places = None  # how many sums of each kind the step has so far; None between steps
        self._ends = False

    def begin_fit(self):
        """Forgets the end of the last epoch. Called when a fit that uses these steps begins."""
        self._ends = False

    def close(self):
        """Closes the sums inside of the steps. No later fit may use them."""
        for each in self._sums.values():
            each.close()
        self._sums.clear()

    def note(self, reducer, leads=True):
        """Records that the current step uses a reducer.

        Ignores reducers that a callback uses between steps. If the model's `train_step` is never
        called, steps are not announced, and every reducer counts.

        Args:
            reducer: `_core.Reducer` or `_core.StepSum`.
            leads: Boolean. Whether every step uses it. True for the reducer of the gradients.
        """
        if not self.is_in_step and self.steps > 0:
            return
        self._reducers[reducer.number] = reducer
        if leads:
            self._leading[reducer.number] = reducer

    def announcing(self, train_step):
        """Wraps a `train_step` so that `is_in_step` is true while it runs."""

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
        """The sum at this place of the step. It lives as long as the compiled step.

        One rank may trace a step again. It then finds the sum that all ranks registered when they
        traced the step for the first time.

        Args:
            kind: Tuple that describes the sum, such as its purpose and its shape.
            make: Function that registers a new sum with all ranks. Its argument is the place: the
                number of earlier sums of this kind in the step. The sum must have a `close`.
        """
        place = self._places[kind]
        self._places[kind] += 1
        if (place, kind) not in self._sums:
            self._sums[place, kind] = make(place)
        return self._sums[place, kind]

    @property
    def has_gradients(self):
        """Whether any step has averaged gradients."""
        return bool(self._leading)

    @property
    def state(self):
        """`JoinState` of the steps since the epoch began."""
        states = [reducer.join_state for reducer in self._reducers.values()]
        if not states:
            return JoinState()
        missed, uneven, stop = zip(*states, strict=True)
        # The engine returns step numbers, with 0 for none; convert them to booleans.
        return JoinState(max(missed), any(uneven), any(stop))

    @property
    def waited(self):
        """The seconds that the steps so far have waited for other ranks.

        `None` if gradients are on GPUs, where the wait is not measured.
        """
        seconds = [reducer.waited for reducer in self._reducers.values()]
        return None if None in seconds else sum(seconds)

    def ends_after_step(self, stop):
        """Whether the epoch ends after a step. Called after the callbacks of the step.

        A rank that is to stop takes one more step, which tells the other ranks. So all ranks stop
        after the same step.

        Args:
            stop: Boolean. Whether this rank is to stop.
        """
        self._ask_to_stop(stop)
        state = self.state
        self._ends = state.stop or (state.uneven and not self.goes_on)
        return self._ends

    def ends_by_step(self, number, stop):
        """Whether the epoch ends by a step. Later steps may have begun already.

        Ranks run ahead by different numbers of steps. So the number of the step whose control word
        asked to stop decides, and not the time at which this rank reads it.

        Args:
            number: Integer. A step that is done, counted from 1 since the epoch began.
            stop: Boolean. Whether this rank is to stop.
        """
        self._ask_to_stop(stop)
        for reducer in self._leading.values():
            _, uneven, stopped = reducer.join_state
            steps = [stopped] if self.goes_on else [stopped, uneven]
            self._ends = self._ends or any(0 < step <= number for step in steps)
        return self._ends

    def ask_to_stop(self):
        """Asks all ranks to stop, by the control word of the next step."""
        for reducer in self._reducers.values():
            reducer.ask_to_stop(True)

    def _ask_to_stop(self, stop):
        if stop and not self._ends:
            self.ask_to_stop()

    def join_others(self, stop):
        """Takes part in the steps of the other ranks, with zeros, until no rank has a batch.

        All ranks must call it after their last step of an epoch. It returns when the last rank has
        ended the epoch.

        Args:
            stop: Boolean. Whether this rank is to stop.

        Returns:
            `JoinState` of the epoch.
        """
        self._ask_to_stop(stop)
        reducers = list(self._reducers.values())
        # Let all join before waiting for any: a step uses several reducers, and each one joins in
        # a thread of its own.
        for reducer in reducers:
            reducer.join()
        for reducer in reducers:
            reducer.wait_for_all()
        state = self.state
        for reducer in reducers:
            reducer.reset_join_state()
        self._ends = False
        return state
