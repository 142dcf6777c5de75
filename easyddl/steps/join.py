"""Join: ranks that have no more batches take part in the steps of the other ranks."""

import collections
import dataclasses
import functools

from easyddl.runtime import settled_errors, world


@dataclasses.dataclass(frozen=True)
class JoinState:
    """What the control words of an epoch told this rank about the other ranks.

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
    """The reducers of a model's steps, by which ranks learn whether others have a batch, or stop.

    The first bucket of every step carries a control word. It counts the ranks that have a batch and
    the ranks that ask to stop, so that neither needs a separate collective: see
    `ext/reducer/control_word.h`.

    A `Join` belongs to a compiled step. All fits that run this step use it.

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

    def give_up(self, error):
        """Ends the reductions of the steps on all ranks after an error of this rank.

        Args:
            error: The exception, which is then settled.
        """
        for reducer in self._reducers.values():
            reducer.give_up(settled_errors.why_given_up(error))
        for each in self._sums.values():
            each.give_up(error)
        settled_errors.settled(error)

    def note(self, reducer, leads=True):
        """Records that the current step uses a reducer.

        Reducers that a callback uses between steps are ignored. If the model's `train_step` is
        never called, the steps are not announced, and every reducer counts.

        Args:
            reducer: `_core.Reducer` or `_core.StepSum`.
            leads: Boolean. Whether every step uses it. This is true for the gradients' reducer.
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
        """Returns the sum at this place of the step. The sum exists as long as the compiled step.

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
            self._register_sum(place, kind, make)
        return self._sums[place, kind]

    @world.on_all_ranks("The registration of a sum inside of a step")
    def _register_sum(self, place, kind, make):
        self._sums[place, kind] = make(place)

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
        """Returns whether the epoch ends after a step. Call it after the callbacks of the step.

        A rank that wants to stop takes one more step, whose control word tells the other ranks. So
        all ranks stop after the same step.

        Args:
            stop: Boolean. Whether this rank wants to stop.
        """
        self._ask_to_stop(stop)
        state = self.state
        self._ends = state.stop or (state.uneven and not self.goes_on)
        return self._ends

    def ends_by_step(self, number, stop):
        """Returns whether the epoch ends at or before a step. Later steps may have begun already.

        Ranks run ahead by different numbers of steps. So the number of the step whose control word
        asked to stop decides, not the time at which this rank reads it.

        Args:
            number: Integer. A step that is done, counted from 1 since the epoch began.
            stop: Boolean. Whether this rank wants to stop.
        """
        self._ask_to_stop(stop)
        for reducer in self._leading.values():
            _, uneven, stopped = reducer.join_state
            steps = [stopped] if self.goes_on else [stopped, uneven]
            self._ends = self._ends or any(0 < step <= number for step in steps)
        return self._ends

    def all_had_batches(self, number):
        """Returns whether all ranks had a batch in each of the first steps of the epoch.

        Args:
            number: Integer. The number of steps, which must be done. Later steps may have begun.
        """
        unevens = [reducer.join_state[1] for reducer in self._leading.values()]
        return not any(0 < step <= number for step in unevens)

    def ask_to_stop(self):
        """Asks all ranks to stop, with the control word of the next step."""
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
            stop: Boolean. Whether this rank wants to stop.

        Returns:
            `JoinState` of the epoch.
        """
        self._ask_to_stop(stop)
        reducers = list(self._reducers.values())
        # All reducers must join before this waits for one of them: a step may use several reducers,
        # and each joins in its own thread.
        for reducer in reducers:
            reducer.join()
        for reducer in reducers:
            reducer.wait_for_all()
        state = self.state
        for reducer in reducers:
            reducer.reset_join_state()
        self._ends = False
        return state
