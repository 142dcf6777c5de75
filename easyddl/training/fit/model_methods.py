"""Patches `fit` and `evaluate` of `keras.Model` so that each call has a context.

Callbacks alone are not enough: Keras does not call them when a fit ends by an exception. The
context also covers a fit without easyddl's callbacks, so that easyddl can warn of it.
"""

import functools
import inspect
import os

import keras

from easyddl import backends
from easyddl.compat import patches, user_code
from easyddl.data import set_epoch, validation_split
from easyddl.data.kinds import is_a
from easyddl.hosts import launched_process
from easyddl.runtime import notices, world
from easyddl.steps import context, fit_exchange
from easyddl.training.fit import callback_order
from easyddl.training.fit.fit_context import FitContext
from easyddl.training.metrics.evaluation import EvaluationContext
from easyddl.training.step import optimizer_hook


def _attach(callbacks, model, **params):
    """Calls `set_model` and `set_params` of easyddl's callbacks in a user's `CallbackList`.

    Keras calls these methods when the user creates the list. That is before the fit, and possibly
    without a model, so they are called again here.

    Args:
        callbacks: The argument `callbacks` of `fit` or `evaluate`.
        model: The Keras model of the call.
        **params: Parameters to add to those of the callbacks.
    """
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in callback_order.callbacks_of(callbacks):
        if is_a(callback, "easyddl"):
            callback.set_model(model)
            callback.set_params({**(callback.params or {}), **params})


def install():
    """Patches the two methods. Called once, when easyddl is imported."""
    patches.install(keras.Model, "fit", _fit)
    patches.install(keras.Model, "evaluate", _evaluate)


def _fit(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        active, callbacks = None, kwargs.get("callbacks")
        try:
            try:
                arguments = signature.bind(self, *args, **kwargs).arguments
            except TypeError:
                return original(self, *args, **kwargs)  # raises Keras's own error
            del arguments["self"]
            arguments = set_epoch.keep_order(arguments)
            callbacks = callback_order.put_in_order(arguments.get("callbacks"))
            arguments["callbacks"] = callbacks
            is_ours = callback_order.has_first(callbacks)
            if is_ours:
                _refuse_distribution(self, "fit")
                _warn_if_backend_is_another()
            is_shared = is_ours and world.size() > 1
            active = FitContext(self, arguments)
            with active:
                if not is_ours and launched_process.is_rank_of_several():
                    world.warn_at_sigterm()
                active.at_end.callback(active.note)
                if is_shared:
                    fit_exchange.open_communicators(active)
                    arguments = active.arguments = validation_split.to_rank_fraction(arguments)
                    active.at_end.callback(backends.require().allow_fit_without_batch(self))
                if is_ours:
                    active.at_end.callback(active.data.watch(self))
                    active.begin()
                if isinstance(getattr(self, "optimizer", None), keras.optimizers.Optimizer):
                    optimizer_hook.move_outwards(self.optimizer)
                _attach(callbacks, self, epochs=arguments.get("epochs", 1))
                history = original(self, **arguments)
                active.tell("after_fit")
                return history
        except BaseException as error:
            _give_up_start(active, callbacks, error)
            raise
        finally:
            if active is not None:
                active.ensure_left()

    return fit


def _evaluate(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def evaluate(self, *args, **kwargs):
        # Within a fit, Keras passes the fit's own list, which is already attached.
        is_inner = context.of(self, FitContext) is not None
        active, callbacks = None, None if is_inner else kwargs.get("callbacks")
        try:
            bound = signature.bind_partial(self, *args, **kwargs)
            arguments = bound.arguments
            data = tuple(arguments.get(name) for name in ("x", "y", "sample_weight"))
            active = EvaluationContext(self, data)
            with active:
                if not is_inner:
                    callbacks = callback_order.put_in_order(arguments.get("callbacks"))
                    arguments["callbacks"] = callbacks
                    if callback_order.has_first(callbacks):
                        _refuse_distribution(self, "evaluate")
                        if world.size() > 1:
                            fit_exchange.open_communicators(active)
                            active.at_end.callback(backends.require().allow_fit_without_batch(self))
                    _attach(callbacks, self)
                return original(*bound.args, **bound.kwargs)
        except BaseException as error:
            _give_up_start(active, callbacks, error)
            raise
        finally:
            if active is not None:
                active.ensure_left()

    return evaluate


def _give_up_start(active, callbacks, error):
    """Ends the start of a call on all ranks if a signal handler has interrupted it on this one.

    Args:
        active: `Context` of the call; `None` if it has none yet.
        callbacks: The argument `callbacks` of the call.
        error: The exception that leaves the call.
    """
    is_interrupt = not isinstance(error, Exception) or user_code.is_of_handler(error)
    has_started = active is not None and active.exchange is not None
    if is_interrupt and not has_started and callback_order.has_first(callbacks):
        fit_exchange.give_up_start(error)


def _refuse_distribution(model, method):
    """Raises an error if a `keras.distribution` is set.

    Keras would then divide the batches of each rank once more, on some versions without a word, and
    on JAX move the variables to devices that easyddl does not know.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise ValueError(
            "keras.distribution shares a step out to several devices, and easyddl to several ranks "
            "of one device each. Leave keras.distribution.set_distribution out, or end it with "
            f"keras.distribution.set_distribution(None) before {method}. Received: model "
            f"{model.name!r} in {distribution}"
        )


def _warn_if_backend_is_another():
    selected, used = os.environ.get("KERAS_BACKEND"), backends.name()
    if selected and selected != used:
        notices.tell_once(
            "KERAS_BACKEND",
            f"warning: KERAS_BACKEND is {selected!r}, but Keras uses {used!r}, because it was "
            "imported before KERAS_BACKEND was set. Set KERAS_BACKEND before the script imports "
            "Keras, TensorFlow, or a name of easyddl that needs Keras, as in `from easyddl import "
            "split_data`.",
        )
