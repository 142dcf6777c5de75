"""What belongs to one call of `model.fit()`, and ends with it."""

import contextlib
import functools
import inspect

import keras

from easyddl import backends, gradients, launcher, world

_TRAINED_ALONE = (
    "easyddl: warning: model.fit() took steps without exchanging gradients: every rank trained "
    "alone. Pass callbacks=[ddl.DDLCallback(), ..., ddl.DDLGlobalVariablesCallback()] to fit."
)

_under_way = []


class Fit:
    """One call of `model.fit()`.

    Attributes:
        model: The model that is trained.
        callbacks: List of the user's callbacks, in their order.
        at_end: `contextlib.ExitStack` of what to undo when fit ends, in whatever way.
    """

    def __init__(self, model, callbacks):
        self.model = model
        self.callbacks = callbacks
        self.at_end = contextlib.ExitStack()
        self._steps = _steps(model)
        self._exchanges = _exchanges()

    @functools.cached_property
    def meter(self):
        """What measures its steps: a `StepMeter`, to be asked for in a callback's `set_model`."""
        meter, model = backends.require().StepMeter(), self.model
        object.__setattr__(model, "train_step", meter.counted(model.train_step))
        self.at_end.callback(object.__delattr__, model, "train_step")
        # Keras compiles the step after `set_model`, but not if there is one of an earlier fit.
        model.train_function = None
        self.at_end.callback(setattr, model, "train_function", None)
        return meter

    def took_steps_alone(self):
        """Whether the optimizer has moved on without one exchange of gradients."""
        moved = _steps(self.model) != self._steps
        return moved and _exchanges() == self._exchanges


def _steps(model):
    optimizer = getattr(model, "optimizer", None)
    return int(optimizer.iterations.numpy()) if getattr(optimizer, "built", False) else 0


def _exchanges():
    # Asking must not start MPI, which a fit without easyddl's callbacks does not need.
    return gradients.exchanged_steps() if world.is_started() else 0


def current(model):
    """The fit of `model` that is under way, or `None`."""
    for fit in reversed(_under_way):
        if fit.model is model:
            return fit
    return None


def _callbacks(callbacks):
    inner = getattr(callbacks, "callbacks", callbacks)  # of a keras CallbackList
    return keras.tree.flatten(inner) if inner else []


def install():
    """Puts a frame around `keras.Model.fit`.

    Callbacks alone do not learn that a fit ended by an exception, nor does anyone of a fit
    that has none of easyddl's callbacks.
    """
    original = keras.Model.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        try:
            arguments = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return original(self, *args, **kwargs)  # which says what is wrong
        under_way = Fit(self, _callbacks(arguments.get("callbacks")))
        _under_way.append(under_way)
        try:
            with under_way.at_end:
                history = original(self, *args, **kwargs)
        finally:
            _under_way.remove(under_way)
        _note(under_way)
        return history

    keras.Model.fit = fit


def _note(fit):
    if launcher.is_rank_of_several() and fit.took_steps_alone():
        world.warn_at_end(_TRAINED_ALONE)
