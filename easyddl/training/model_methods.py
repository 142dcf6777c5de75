"""Puts a context around `keras.Model.fit` and `keras.Model.evaluate`.

Callbacks alone do not learn that a fit ended by an exception. Nor does anyone learn of a fit that
has none of easyddl's callbacks.
"""

import functools
import inspect

import keras

from easyddl import backends
from easyddl.compat import patches
from easyddl.data import set_epoch, validation_split
from easyddl.data.kinds import is_a
from easyddl.runtime import context, job_exit, launcher, world
from easyddl.training.evaluation_context import EvaluationContext
from easyddl.training.fit_context import FitContext, callbacks_of

_TRAINED_ALONE = (
    "easyddl: warning: model.fit() took steps without exchanging gradients: every rank trained "
    "alone. Pass callbacks=[ddl.DDLCallback(), ..., ddl.DDLGlobalVariablesCallback()] to fit."
)


def _attach(callbacks, model, **params):
    """Tells easyddl's callbacks in a `CallbackList` of the user's own what they serve now.

    Keras does so as it makes such a list: here before the fit, and maybe without a model.
    """
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in callbacks_of(callbacks):
        if is_a(callback, "easyddl"):
            callback.set_model(model)
            callback.set_params({**(callback.params or {}), **params})


def _is_shared(callbacks):
    """Whether one of the callbacks is a `DDLCallback`, and there are other ranks."""
    names = [cls.__name__ for callback in callbacks for cls in type(callback).__mro__]
    return "DDLCallback" in names and world.size() > 1


def install():
    """Has every call of the two methods make a context. To be called once."""
    patches.install(keras.Model, "fit", _fit)
    patches.install(keras.Model, "evaluate", _evaluate)


def _fit(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        try:
            arguments = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return original(self, *args, **kwargs)  # which says what is wrong
        del arguments["self"]
        arguments = set_epoch.in_order(arguments)
        is_shared = _is_shared(callbacks_of(arguments.get("callbacks")))
        if is_shared:
            arguments = validation_split.made_global(arguments)
        with job_exit.bounded_end() as has_failed, FitContext(self, arguments) as active:
            try:
                if is_shared:
                    active.at_end.callback(backends.require().begin_without_batch(self))
                    active.at_end.callback(active.data.watch(self))
                given = arguments.get("callbacks")
                _attach(given, self, epochs=arguments.get("epochs", 1))
                history = original(self, **arguments)
                active.succeed()
            except BaseException as error:
                if is_shared:
                    has_failed(error)
                raise
        _warn_if_alone(active)
        return history

    return fit


def _evaluate(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def evaluate(self, *args, **kwargs):
        with EvaluationContext(self):
            if context.of(self, FitContext) is None:  # a fit passes its own list
                arguments = signature.bind_partial(self, *args, **kwargs).arguments
                _attach(arguments.get("callbacks"), self)
            return original(self, *args, **kwargs)

    return evaluate


def _warn_if_alone(fit):
    is_alone = launcher.is_rank_of_several() and fit.step is None
    if is_alone and fit.took_steps_alone():
        world.warn_at_end(_TRAINED_ALONE)
