"""What belongs to one call of `model.fit()`, and ends with it."""

import functools
import threading

import keras

from easyddl import backends
from easyddl.collectives import objects
from easyddl.compat import keras_trainer, patches
from easyddl.reducer import gradient_reducer
from easyddl.runtime import context, world
from easyddl.training import dry_run, epoch_data, structures


class FitContext(context.Context):
    """One call of `model.fit()`.

    Attributes:
        arguments: Dict of what `fit` was called with, by name.
        callbacks: List of the user's callbacks, in their order.
        random_states: `Parted`, where each rank draws random numbers of its own for the length of
            the fit; else `None`.
        has_steps: Boolean. Whether this rank has taken any, where a `DDLCallback` is among them.
        has_batches: Boolean. Whether this rank had a batch when the ranks met at the first one.
        steps: Integer. How often this rank has called its train function in this epoch, where a
            `DDLCallback` is among the callbacks.
        has_restored_metrics: Boolean. Whether this epoch goes on with the metrics of a backup.
        data: `EpochData`, which is watched where a `DDLCallback` is among the callbacks.
    """

    def __init__(self, model, arguments):
        super().__init__(model)
        self.data = epoch_data.EpochData()
        self.arguments = arguments
        self.callbacks = callbacks_of(arguments.get("callbacks"))
        self.random_states = None
        self.steps = 0
        self._thread = threading.get_ident()
        self._acts = []  # at the first batch
        self._last_acts = []  # when Keras's `fit` has returned
        self._steps_end_acts = []  # when an epoch's steps have ended
        self.has_steps = False
        self.has_restored_metrics = False
        self._first_step = []  # what to call after it
        self._has_met = False
        self.has_batches = False
        self._validation_freq = None  # of the ranks that validate
        self._steps = _steps(model)
        self._exchanged = _exchanged_steps()

    @property
    def join(self):
        """The `Join` of its steps; `None` without a `DDLCallback`."""
        return self.step and self.step.join

    def ask_who_validates(self):
        """Hears whether any rank has data to validate with. All ranks must ask together."""
        given = self.arguments.get("validation_data") is not None
        given = given or bool(self.arguments.get("validation_split"))
        mine = self.arguments.get("validation_freq", 1) if given else None
        everyones = [each for each in objects.allgather_object(mine) if each is not None]
        self._validation_freq = everyones[0] if everyones else None

    def anyone_validates(self, epoch):
        """Whether any rank validates after an epoch."""
        frequency = self._validation_freq
        return frequency is not None and keras_trainer.validates_after(self.model, epoch, frequency)

    def at_success(self, act):
        """Has `act` called once Keras's `fit` has returned, on all ranks together."""
        self._last_acts.append(act)

    def succeed(self):
        """Called when Keras's `fit` has returned."""
        while self._last_acts:
            self._last_acts.pop(0)()

    def at_steps_end(self, act):
        """Has `act` called in each epoch between its last step and its validation.

        All ranks call it together.
        """
        self._steps_end_acts.append(act)

    def end_steps(self):
        """Called when the last step of an epoch has ended."""
        for act in self._steps_end_acts:
            act()

    @property
    def has_samples(self):
        """Whether the metrics of this epoch hold samples of this rank's."""
        return self.steps > 0 or self.has_restored_metrics

    def at_first_batch(self, act):
        """Has `act` called before the first step, on all ranks together.

        Args:
            act: Function of the structure of the batches, in the backend's form.
        """
        if not self._acts:
            backends.require().on_first_batch(self.model, self._meet)
        self._acts.append(act)

    def meet_without_batch(self):
        """Called by a rank after its steps: if it had none, it meets the others that have.

        They have registered what they exchange when they traced their first step. So this rank
        traces that too, for batches of the structure of theirs.
        """
        if self._has_met or not self._acts:
            return
        spec = self._meet(None)
        if spec is not None:
            preserved = dry_run.Preserved(self.model)
            backends.require().trace_step(self.model, spec, preserved)

    def _meet(self, spec):
        if self._has_met:
            return spec
        self._has_met = True
        self.has_batches = spec is not None
        mine = None if spec is None else structures.described(spec)
        specs = [each for each in objects.allgather_object(mine) if each is not None]
        if spec is None and specs:
            spec = structures.rebuilt(specs[0])
        if spec is not None:
            for act in self._acts:
                act(spec)
            if self.step is not None:
                self.step.is_traced = True
        return spec

    def wrap_train_step(self, wrap):
        """Has the model take its steps by another function, for as long as the fit lasts.

        Args:
            wrap: Function of the model's `train_step` that returns another one. To be called in
                a callback's `set_model`: Keras compiles the step after that.
        """
        model = self.model
        wrapped = backends.require().uncompiled(wrap(model.train_step))
        self.at_end.callback(patches.replace(model, "train_step", wrapped))
        if self.step is None:
            # Keras would take the one that it has compiled in an earlier fit.
            model.train_function = None
            self.at_end.callback(setattr, model, "train_function", None)

    def is_here(self):
        """Whether this is the thread that takes the steps: callbacks may be called in others."""
        return threading.get_ident() == self._thread

    def begin_epoch(self):
        """Called as an epoch begins."""
        self.steps = 0
        self.has_restored_metrics = False
        self._wait = lambda: None

    def after_first_step(self, act):
        """Has `act` called as soon as the first step has been taken, or begun."""
        self._first_step.append(act)

    def watch_steps(self):
        """Counts the steps of each epoch, and has all ranks end it after the same one.

        Where Keras waits for neither the step nor the callbacks, ranks hear at different times
        that the epoch is to end. So all of them go on for one step after that which has told so,
        unless the backend waits for each step.
        To be called in the first callback's `on_train_begin`.
        """
        model = self.model
        step = model.train_function

        @functools.wraps(step)
        def watched(*arguments):
            result = step(*arguments)
            wait = backends.require().begun(result)
            if wait is not None:
                self._wait()  # for the step before, while this one is under way
                self._wait = wait
            done = (self.steps + (wait is None)) * model.steps_per_execution
            self.steps += 1
            self.has_steps = True
            while self._first_step:
                self._first_step.pop()()
            model.stop_training = self.join.ends_by_step(done, model.stop_training)
            return result

        model.train_function = watched

    @functools.cached_property
    def meter(self):
        """What measures its steps: a `StepMeter`, to be asked for in a callback's `set_model`."""
        meter = backends.require().step_meter() if self.step is None else self.step.meter
        meter.watch(self)
        return meter

    def took_steps_alone(self):
        """Whether the optimizer has moved on without one exchange of gradients."""
        moved = _steps(self.model) != self._steps
        return moved and _exchanged_steps() == self._exchanged


def _steps(model):
    optimizer = getattr(model, "optimizer", None)
    if not getattr(optimizer, "built", False):
        return 0
    # With accumulation it is no variable, but what is computed of one.
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def _exchanged_steps():
    # Asking must not start MPI, which a fit without easyddl's callbacks does not need.
    return gradient_reducer.exchanged_steps() if world.is_started() else 0


def current(model):
    """The innermost active fit of `model`, or `None`."""
    return context.of(model, FitContext)


def everyone_trains(model):
    """Whether all ranks had a batch in the last step of a fit.

    A rank without batches does not run callbacks, so it does not call this.
    """
    fit = current(model)
    return fit is None or fit.join is None or not fit.join.state.uneven


def callbacks_of(callbacks):
    """The user's callbacks as a list: `fit` also takes one, nested ones, or a `CallbackList`."""
    inner = getattr(callbacks, "callbacks", callbacks)
    return keras.tree.flatten(inner) if inner else []
