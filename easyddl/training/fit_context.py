"""What belongs to one call of `model.fit()`, and ends with it."""

import contextlib
import functools
import inspect
import threading

import keras

from easyddl import backends
from easyddl.collectives import objects
from easyddl.compat import keras_trainer, patches
from easyddl.data import set_epoch, validation_split
from easyddl.data.kinds import is_a
from easyddl.runtime import job_exit, launcher, world
from easyddl.training import epoch_data, evaluation_context, optimizer_hook, structures

_TRAINED_ALONE = (
    "easyddl: warning: model.fit() took steps without exchanging gradients: every rank trained "
    "alone. Pass callbacks=[ddl.DDLCallback(), ..., ddl.DDLGlobalVariablesCallback()] to fit."
)

_under_way = []


class Fit:
    """One call of `model.fit()`.

    Attributes:
        model: The model that is trained.
        arguments: Dict of what `fit` was called with, by name.
        callbacks: List of the user's callbacks, in their order.
        at_end: `contextlib.ExitStack` of what to undo when fit ends, in whatever way.
        step: `CompiledStep`, where a `DDLCallback` is among the callbacks; else `None`.
        has_steps: Boolean. Whether this rank has taken any, where a `DDLCallback` is among them.
        has_batches: Boolean. Whether this rank had a batch when the ranks met at the first one.
        steps: Integer. How often this rank has called its train function in this epoch, where a
            `DDLCallback` is among the callbacks.
        has_restored_metrics: Boolean. Whether this epoch goes on with the metrics of a backup.
        data: `EpochData`, which is watched where a `DDLCallback` is among the callbacks.
    """

    def __init__(self, model, arguments):
        self.model = model
        self.data = epoch_data.EpochData()
        self.arguments = arguments
        self.callbacks = _callbacks(arguments.get("callbacks"))
        self.at_end = contextlib.ExitStack()
        self.step = None
        self.steps = 0
        self._thread = threading.get_ident()
        self._acts = []  # at the first batch
        self._last_acts = []
        self.has_steps = False
        self.has_restored_metrics = False
        self._first_step = []  # what to call after it
        self._has_met = False
        self.has_batches = False
        self._validation_freq = None  # of the ranks that validate
        self._steps = _steps(model)
        self._exchanges = _exchanges()

    @property
    def attendance(self):
        """The `Attendance` of its steps; `None` without a `DDLCallback`."""
        return self.step and self.step.attendance

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

    def at_first_batch(self, act):
        """Has `act` called before the first step, on all ranks together.

        Args:
            act: Function of the structure of the batches, which the backend's door understands.
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
            backends.require().trace_step(self.model, spec)

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
            model.stop_training = self.attendance.by_step(done, model.stop_training)
            return result

        model.train_function = watched

    @functools.cached_property
    def meter(self):
        """What measures its steps: a `StepMeter`, to be asked for in a callback's `set_model`."""
        meter = backends.require().StepMeter() if self.step is None else self.step.meter
        meter.watch(self)
        return meter

    def took_steps_alone(self):
        """Whether the optimizer has moved on without one exchange of gradients."""
        moved = _steps(self.model) != self._steps
        return moved and _exchanges() == self._exchanges


def _steps(model):
    optimizer = getattr(model, "optimizer", None)
    if not getattr(optimizer, "built", False):
        return 0
    # With accumulation it is no variable, but what is computed of one.
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def _exchanges():
    # Asking must not start MPI, which a fit without easyddl's callbacks does not need.
    return optimizer_hook.exchanged_steps() if world.is_started() else 0


def current(model):
    """The fit of `model` that is under way, or `None`."""
    for fit in reversed(_under_way):
        if fit.model is model:
            return fit
    return None


def everyone_trains(model):
    """Whether no rank is out of batches, in the last step of a fit. Such a one is not here."""
    fit = current(model)
    return fit is None or fit.attendance is None or not fit.attendance.seen.uneven


def _callbacks(callbacks):
    inner = getattr(callbacks, "callbacks", callbacks)  # of a keras CallbackList
    return keras.tree.flatten(inner) if inner else []


def _attach(callbacks, model, **params):
    """Tells easyddl's callbacks in a `CallbackList` of the user's own what they serve now.

    Keras does so as it makes such a list: here before the fit, and maybe without a model.
    """
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in _callbacks(callbacks):
        if is_a(callback, "easyddl"):
            callback.set_model(model)
            callback.set_params({**(callback.params or {}), **params})


def _is_shared(callbacks):
    """Whether one of the callbacks is a `DDLCallback`, and there are other ranks."""
    names = [cls.__name__ for callback in callbacks for cls in type(callback).__mro__]
    return "DDLCallback" in names and world.size() > 1


def install():
    """Puts a frame around `keras.Model.fit`, and one around `keras.Model.evaluate`.

    Callbacks alone do not learn that a fit ended by an exception, nor does anyone of a fit
    that has none of easyddl's callbacks.
    """
    patches.install(keras.Model, "fit", _framed_fit)
    patches.install(keras.Model, "evaluate", _framed_evaluate)


def _framed_fit(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        try:
            arguments = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return original(self, *args, **kwargs)  # which says what is wrong
        del arguments["self"]
        arguments = set_epoch.in_order(arguments)
        is_shared = _is_shared(_callbacks(arguments.get("callbacks")))
        if is_shared:
            arguments = validation_split.made_global(arguments)
        under_way = Fit(self, arguments)
        if is_shared:
            under_way.at_end.callback(backends.require().begin_without_batch(self))
            under_way.at_end.callback(under_way.data.watch(self))
        _under_way.append(under_way)
        try:
            with job_exit.bounded_end() as has_failed, under_way.at_end:
                try:
                    epochs_given = arguments.get("epochs", 1)
                    _attach(arguments.get("callbacks"), self, epochs=epochs_given)
                    history = original(self, **arguments)
                    under_way.succeed()
                except BaseException as error:
                    if is_shared:
                        has_failed(error)
                    raise
        finally:
            _under_way.remove(under_way)
        _note(under_way)
        return history

    return fit


def _framed_evaluate(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def evaluate(self, *args, **kwargs):
        with evaluation_context.under_way(self):
            if current(self) is None:  # a fit passes its own list
                arguments = signature.bind_partial(self, *args, **kwargs).arguments
                _attach(arguments.get("callbacks"), self)
            return original(self, *args, **kwargs)

    return evaluate


def _note(fit):
    is_alone = launcher.is_rank_of_several() and fit.step is None
    if is_alone and fit.took_steps_alone():
        world.warn_at_end(_TRAINED_ALONE)
