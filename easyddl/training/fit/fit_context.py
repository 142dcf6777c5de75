"""The context of one call of `model.fit()`."""

import contextlib
import functools
import threading
import time

import numpy as np

from easyddl import backends
from easyddl.collectives import objects
from easyddl.collectives.variables import checksum, sampled, value_of
from easyddl.compat import keras_optimizer, keras_trainer, patches, user_code
from easyddl.data import global_random, set_epoch
from easyddl.hosts import launched_process
from easyddl.reducer import gradient_reducer
from easyddl.runtime import notices, world
from easyddl.steps import context
from easyddl.training.agreement import fit_inputs
from easyddl.training.fit import array_order, callback_order, epoch_data, step_ends, structures
from easyddl.training.state import lost_variables, model_state, preserved_state

_TRAINED_ALONE = (
    "easyddl: warning: model.fit() took steps without reducing gradients: {ranks} trained "
    "alone. Pass callbacks=[ddl.DDLCallback(), ..., ddl.DDLGlobalVariablesCallback()] to fit."
)

# The seconds after an error of this rank in which a step in progress may still end.
_PATIENCE = 5.0


class FitContext(context.Context):
    """One call of `model.fit()`.

    The counts of steps, `data` and `step_ends` are only maintained if a `DDLCallback` is among the
    callbacks.

    Args:
        model: A Keras model.
        arguments: Dict of the arguments of `fit`, by name.

    Attributes:
        arguments: Dict of the arguments of `fit`, by name.
        callbacks: List of the user's callbacks, in the order in which Keras calls them.
        first: The `DDLCallback` among them; `None` if there is none.
        last: The `DDLGlobalVariablesCallback` among them; `None` if there is none.
        listeners: List of the `FitEvents` that the fit calls: first those callbacks among its own.
        epoch: Integer. The current epoch, from 0.
        steps_per_epoch: Integer. The largest number of steps in an epoch that a rank knows of its
            data before it trains; `None` if no rank knows it.
        part_before: Float. The part of this epoch that starts with other numbers of ranks have
            taken, if this fit takes the rest: see `EpochItems.take_rest`.
        root_callbacks: List of those that act on the root only, each with its plain attributes
            before the fit, as a dict.
        random_states: The `PerRankStates` of this fit, if each rank draws its own random numbers
            until the fit ends; otherwise `None`.
        arrays_before: Dict. The checksums of the arrays of layers when the fit started.
        ranks_without_batch: List of the ranks that have no batch for the first step.
        steps: Integer. The number of calls of the train function on this rank in this epoch.
        has_restored_metrics: Boolean. Whether this epoch continues with the metrics of a backup.
        data: `EpochData`.
        step_ends: `StepEnds`.
        array_order: `ArrayOrder`; `None` if the fit does not shuffle arrays.
    """

    called = "model.fit()"

    def __init__(self, model, arguments):
        super().__init__(model)
        self.data = epoch_data.EpochData()
        self.step_ends = step_ends.StepEnds()
        self.array_order = None
        self.arguments = arguments
        self.callbacks = callback_order.callbacks_of(arguments.get("callbacks"))
        self.first = callback_order.find(callback_order.First, self.callbacks)
        self.last = callback_order.find(callback_order.Last, self.callbacks)
        self.listeners = [c for c in self.callbacks if isinstance(c, callback_order.FitEvents)]
        self.epoch = 0
        self.steps_per_epoch = None
        self._is_even = False  # whether all ranks know that they have the same number of steps
        self.part_before = 0.0
        self.root_callbacks = []
        self.random_states = None
        self.arrays_before = {}
        self._equal_logs = {}  # of this epoch
        self._equal_states = None  # the number of the latest epoch whose states were equal
        self.steps = 0
        self._batches_before_fit = None  # those that the meter counted
        self._batches_before_epoch = self._batches_before_average = 0
        self.has_restored_metrics = False
        self.ranks_without_batch = []
        self._in_progress = None  # the `StepInProgress` that this rank has not waited for
        self._exchanges_first_batch = self._has_first_batch = False
        self._has_stepped = False
        self._first_spec = None
        self._validation_freq = None  # that of the ranks that have validation data
        self.has_lost_variables = lost_variables.are_there(model)
        self._first_iteration = 0 if self.has_lost_variables else _iterations_of(model)
        self._first_weights = None
        self._reduced_before = _reduced_steps()

    @property
    def join(self):
        """The `Join` of the fit's steps; `None` without a `DDLCallback`."""
        return self.step and self.step.join

    def begin(self):
        """Compares what the ranks pass to the fit, and determines the order of its arrays.

        Collective.
        """
        seed = array_order.draw_seed(self.arguments)
        if world.size() == 1:
            self.array_order = array_order.create_order(self, [seed])
            return
        found = fit_inputs.compare(self, seed)
        frequencies = [each for each in found["validation_freq"] if each is not None]
        self._validation_freq = next(iter(frequencies), None)
        self.array_order = array_order.create_order(self, found["seed"])
        if any(found["waits for steps"]):
            self._wait_for_steps()
        if all(found["numbers may differ"]):
            self._share_random_numbers()

    def _wait_for_steps(self):
        """Makes Keras wait for each step on all ranks, as a callback of one makes it wait there.

        Otherwise a rank that does not wait learns one step later that the epoch must end.
        """
        self.at_end.callback(patches.replace(self.first, "async_safe", False))

    def _share_random_numbers(self):
        if global_random.shared_states() is None:  # otherwise a fit around this one does
            global_random.share(objects.broadcast_object(global_random.states()))
            self.at_end.callback(global_random.unite, is_provider=world.rank() == 0)

    def note_equal_states(self, number):
        """Warns if the ranks train on the same samples of data whose contents were not compared.

        Args:
            number: Integer: see `metrics.shared_logs`. A loss that is the same number in two epochs
                may be a constant.
        """
        is_constant = self._equal_states in (None, number)
        self._equal_states = number
        if not is_constant and fit_inputs.may_be_unsplit(self.arguments.get("x")):
            notices.tell_once(
                "the same x",
                f"warning: all {world.size()} ranks have the same losses in two epochs, as if they "
                "had trained on the same samples. If they have, split the dataset or the generator "
                "before, by ddl.split_data(dataset), or let each rank read its own part.",
            )

    @property
    def validates_held_out_samples(self):
        """Whether `validation_split` takes the validation data from this rank's samples."""
        has_split = bool(self.arguments.get("validation_split"))
        return has_split and self.arguments.get("validation_data") is None

    def any_rank_validates(self, epoch):
        """Returns whether any rank validates after an epoch."""
        frequency = self._validation_freq
        return frequency is not None and keras_trainer.validates_after(self.model, epoch, frequency)

    def set_steps(self, by_rank):
        """Sets what the ranks know of their numbers of steps in an epoch.

        Args:
            by_rank: List of integers; `None` where a rank does not know it.
        """
        self.steps_per_epoch = max((each for each in by_rank if each is not None), default=None)
        self._is_even = None not in by_rank and len(set(by_rank)) == 1

    def is_in_execution(self):
        """Returns whether this rank's data ended in an execution that others may continue."""
        several = self.model.steps_per_execution
        is_even = self._is_even and not self.part_before  # the rest of an epoch may be uneven
        return several > 1 and not is_even and self.batches % several > 0

    def tell(self, event, *arguments):
        """Calls the method of all listeners that belongs to an event.

        Args:
            event: String. The name of a method of `FitEvents`.
            *arguments: The arguments of the method after the fit.
        """
        for each in self.listeners:
            getattr(each, event)(self, *arguments)

    def noted_logs(self, logs, prefix=""):
        """Notes logs that are equal on all ranks, and returns them.

        Args:
            logs: Dict of the results of metrics.
            prefix: String. What Keras puts before their names in the logs of the epoch.
        """
        self._equal_logs.update({f"{prefix}{key}": value for key, value in logs.items()})
        return logs

    def own_logs(self, logs):
        """Returns the entries of the logs of an epoch that did not come from `noted_logs`."""
        equal = self._equal_logs
        return {
            key: value
            for key, value in logs.items()
            if key not in equal or not (equal[key] is value or np.array_equal(equal[key], value))
        }

    @property
    def batches(self):
        """The number of batches that this rank has trained on in this epoch.

        If the data end within an execution of several steps, Keras 3.5 on TensorFlow raises the
        end of the data, so that `steps` does not count this execution.
        """
        return self.meter.steps - self._batches_before_epoch

    def average_state(self):
        """Replaces the state that each rank collects from its own batches by the mean. Collective.

        A rank's weight is its number of batches since the last average.
        """
        weight = self.meter.steps - self._batches_before_average
        self._batches_before_average = self.meter.steps
        model_state.average_own_state(self.model, weight)

    @property
    def has_steps(self):
        """Whether this rank has trained on any batch of the fit."""
        return self._batches_before_fit not in (None, self.meter.steps)

    @property
    def has_samples(self):
        """Whether this rank's metrics contain samples of this epoch."""
        return self.batches > 0 or self.has_restored_metrics

    def exchange_first_batch(self):
        """Makes all ranks exchange the structures of their batches before the first step."""
        if not self._exchanges_first_batch:
            self._exchanges_first_batch = True
            backends.require().on_first_batch(self.model, self._begin_first_batch)

    def join_first_batch(self):
        """Exchanges the structures on a rank that has no batch, if other ranks have one.

        The other ranks register the step's collectives when they trace their first step. Therefore
        this rank traces the step too, with the structure of the other ranks' batches. So does a
        rank whose batches were all skipped, as a resumed training skips some. Called after the
        steps of an epoch.
        """
        if not self._exchanges_first_batch:
            return
        if self._has_first_batch:
            spec = self._first_spec if self.join.steps == 0 else None
        else:
            spec = self._begin_first_batch(None)
        if spec is not None:
            preserved = preserved_state.PreservedState(self.model)
            backends.require().trace_step(self.model, spec, preserved)

    def _begin_first_batch(self, spec):
        """Exchanges the structures of the first batches, and tells the listeners. Collective.

        Args:
            spec: The structure of this rank's first batch; `None` if this rank has no batch.

        Returns:
            The structure of this rank's batch, or of another rank's; `None` if no rank has a batch.
        """
        if self._has_first_batch:
            return spec
        self._has_first_batch = True
        mine = None if spec is None else structures.describe(spec)
        specs = objects.allgather_object(mine)
        self.ranks_without_batch = [rank for rank, each in enumerate(specs) if each is None]
        if spec is None and any(specs):
            spec = structures.rebuild(next(filter(None, specs)))
        self._first_spec = spec
        if spec is not None:
            self.tell("before_first_batch", spec)
            self._first_weights = _sampled_weights(self.model)  # they may have been built only now
            if self.step is not None:
                self.step.is_traced = True
        return spec

    def wrap_train_step(self, wrap):
        """Replaces the model's `train_step` until the fit ends.

        Call it in a callback's `set_model`, because Keras compiles the step after that.

        Args:
            wrap: Function that takes the model's `train_step` and returns another one.
        """
        model = self.model
        wrapped = backends.require().uncompiled(wrap(model.train_step))
        self.at_end.callback(patches.replace(model, "train_step", wrapped))
        if self.step is None:
            # Otherwise Keras would use the train function that it compiled in an earlier fit.
            model.train_function = None
            self.at_end.callback(setattr, model, "train_function", None)

    def is_training_thread(self):
        """Returns whether this thread runs the steps. Keras may call callbacks in other threads."""
        return threading.get_ident() == self.thread

    def begin_epoch(self, epoch):
        """Resets the counts of an epoch, and sets the order of its data."""
        self.epoch = epoch
        set_epoch.set_epochs(self.arguments.get("x"), epoch)
        if self.array_order is not None:
            self.array_order.change(epoch=epoch)
        self.steps = 0
        self._batches_before_epoch = self._batches_before_average = self.meter.steps
        if self._batches_before_fit is None:
            self._batches_before_fit = self.meter.steps
            if world.size() > 1 and not self._exchanges_first_batch:
                self._first_weights = _sampled_weights(self.model)
        self._equal_logs.clear()
        self.has_restored_metrics = False
        self._in_progress = None

    def watch_steps(self):
        """Counts the steps of each epoch, and makes all ranks end the epoch after the same step.

        If Keras waits neither for a step nor for the callbacks, the ranks learn at different times
        that the epoch must end. Therefore all ranks run one more step after the step that carried
        this information, unless the backend waits for each step.

        Call it in the first callback's `on_train_begin`.
        """
        model = self.model
        step = model.train_function

        @functools.wraps(step)
        def counted(*arguments):
            result = step(*arguments)
            previous, self._in_progress = self._in_progress, backends.require().begun(result)
            if previous is not None:
                previous.wait()  # while this one runs
            done = (self.steps + (self._in_progress is None)) * model.steps_per_execution
            self.steps += 1
            if not self._has_stepped:
                self._has_stepped = True
                self.tell("after_first_step")
            model.stop_training = self.join.ends_by_step(done, model.stop_training)
            return result

        model.train_function = counted

    def let_steps_end(self):
        """Waits for a short time for the step in progress, for which other ranks may only be late.

        On JAX the weights of the model are the results of that step.
        """
        end = time.monotonic() + _PATIENCE
        # Poll: a thread that waits could not be started without memory for its stack.
        with contextlib.suppress(Exception):
            while self._in_progress and not self._in_progress.is_done() and time.monotonic() < end:
                time.sleep(0.001)

    @functools.cached_property
    def meter(self):
        """The `StepMeter` of the fit's steps. Read it first in a callback's `set_model`."""
        meter = backends.require().step_meter() if self.step is None else self.step.meter
        meter.watch(self)
        return meter

    def has_moved_weights(self):
        """Returns whether a step with a `DDLCallback` has changed trainable weights."""
        if self._first_weights is None:  # Keras's own step changes all that there are
            return bool(self.model.trainable_weights)
        return self._first_weights != _sampled_weights(self.model)

    def note(self):
        """Warns at the end of the job if this rank has trained alone in this fit."""
        is_alone = launched_process.is_rank_of_several() and self.step is None
        if is_alone and self.has_trained_alone():
            world.warn_at_end("fit", _TRAINED_ALONE)

    def has_trained_alone(self):
        """Returns whether the optimizer has applied gradients although none were reduced."""
        if self.has_lost_variables or _reduced_steps() != self._reduced_before:
            return False
        has_lost = lost_variables.are_there(self.model)  # an error has ended a step
        return has_lost or _iterations_of(self.model) != self._first_iteration


def _iterations_of(model):
    optimizer = getattr(model, "optimizer", None)
    if not getattr(optimizer, "built", False):
        return 0
    return keras_optimizer.updates_of(optimizer)


def _sampled_weights(model):
    """Returns a checksum of at most some thousand elements of each trainable weight.

    It is `None` for a model that trains by Keras's own step, because it copies the weights.
    """
    cls = type(model)
    if user_code.is_of_keras(cls.train_step) and user_code.is_of_keras(cls.make_train_function):
        return None
    return [checksum(sampled(value_of(each), 4096)) for each in model.trainable_weights]


def _reduced_steps():
    # A fit without easyddl's callbacks does not need MPI, so this must not start it.
    return gradient_reducer.reduced_steps() if world.is_started() else 0


def current(model):
    """Returns the innermost active fit of `model`; `None` if there is none."""
    return context.of(model, FitContext)


def average_state(model):
    """Averages what the ranks collect from their own batches, also without a `DDLCallback`."""
    fit = current(model)
    if fit is not None and fit.step is not None:
        fit.average_state()
    else:
        model_state.average_own_state(model)


def all_ranks_have_batches(model):
    """Returns whether all ranks are known to have had a batch in the last step of a fit.

    A rank without batches does not run callbacks, so it does not call this function. But Keras on
    JAX gets empty logs, as if of a step, where a rank has no batch in the first epoch.

    It is not known after a step that only accumulates gradients, which has no control word, nor
    where this rank's data ended in an execution of several steps: other ranks may continue it.
    """
    fit = current(model)
    if fit is None or fit.join is None or world.size() == 1:
        return True
    if fit.steps == 0 or fit.join.state.uneven or fit.is_in_execution():
        return False
    return fit.step.reduced_in_last_step()
