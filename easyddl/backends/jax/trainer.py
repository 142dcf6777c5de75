"""Keras's trainer on JAX.

The step is a pure function of a state, which holds the values of all variables. During an epoch
only that state has the values. `model.jax_state_sync()` assigns them to the variables, and the next
step then starts from the variables. A step may still be computing when the trainer continues.
"""

import contextlib
import functools
import itertools

import jax
import keras

from easyddl.backends.base import Backend, StepInProgress
from easyddl.backends.step_meter import StepMeter
from easyddl.compat import keras_data, keras_jax_trainer, keras_trainer, patches
from easyddl.runtime import world


class JaxTrainer(Backend):
    """How Keras trains on a `JaxBackend`."""

    def check_model(self, model):
        if getattr(keras.config, "is_nnx_enabled", lambda: False)():
            raise NotImplementedError(
                "easyddl does not support variables of Flax NNX. Unset KERAS_NNX_ENABLED. "
                f"Received: model {model.name!r}"
            )
        if world.size() > 1 and jax.default_backend() not in ("cpu", "gpu"):
            raise NotImplementedError(
                "easyddl reduces JAX's gradients on CPUs and NVIDIA GPUs only. Set JAX_PLATFORMS "
                f"to cpu or cuda. Received: model {model.name!r} on {jax.default_backend()!r}"
            )

    def allow_fit_without_batch(self, model):
        """Makes fits, and evaluations in them, start without an error on a rank without a batch.

        Otherwise Keras would fail to build the model, have no logs, and lose the values of all
        variables.

        Returns:
            Function without arguments that undoes the change.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(keras_trainer.defer_without_batch(model))
            for kind in ("train", "test"):
                undo.callback(_wrap_made(model, f"{kind}_function", _held))
            return undo.pop_all().close

    def on_first_batch(self, model, act):
        step = model.train_function

        def first(state, data):
            model.train_function = step
            try:
                item, data = _first(data)
            except StopIteration:
                return {}, state  # a fit fails if its first epoch ends without any logs
            spec = _specs(model, item)[0]
            return step(_changed(model, state, lambda: act(spec)), data)

        model.train_function = first

    def trace_step(self, model, spec, preserved):
        keras_jax_trainer.sync(model)
        # This also builds the metrics. Variables created while tracing would be unusable later.
        self.build(model, spec)
        jax.eval_shape(model.train_step, keras_jax_trainer.copy_state(model), spec)

    def unwrapped(self, function):
        while hasattr(function, "easyddl_wraps"):
            function = function.easyddl_wraps
        return function

    def begun(self, result):
        logs, state = result
        # The next step reuses the memory of the state, so later only the logs can be waited for.
        arrays = [leaf for leaf in jax.tree.leaves(logs) if isinstance(leaf, jax.Array)]
        if not arrays:
            jax.block_until_ready(state)
            return None
        return StepInProgress(
            wait=lambda: jax.block_until_ready(arrays),
            is_done=lambda: all(each.is_ready() for each in arrays),
        )

    def finish(self, model):
        jax.block_until_ready(keras_jax_trainer.arrays_of(model))

    def skip_steps(self, model, steps):
        end = super().skip_steps(model, steps)
        model.train_function = _held(model, model.train_function)
        return end

    def result_without_step(self, model, state):
        logs = {}
        state = _changed(model, state, lambda: logs.update(model.get_metrics_result()))
        return logs, state


def _wrap_made(model, name, wrap):
    """Wraps the train or test function, each time that the trainer makes it.

    Args:
        model: A Keras model.
        name: `"train_function"` or `"test_function"`.
        wrap: Function of the model and of the trainer's function. It returns the wrapper.

    Returns:
        Function without arguments that undoes the change.
    """
    maker = f"make_{name}"
    original = getattr(model, maker)
    made = []

    def make(force=False):
        original(force)
        function = getattr(model, name)
        if not any(function is each for each in made):
            made.append(functools.wraps(function)(wrap(model, function)))
            made[-1].easyddl_wraps = function
            setattr(model, name, made[-1])

    undo_maker = patches.replace(model, maker, make)

    def undo():
        undo_maker()
        function = getattr(model, name)
        if any(function is each for each in made):
            setattr(model, name, function.easyddl_wraps)

    return undo


def _held(model, step):
    """Wraps a step so that the state is kept when the data end.

    Keras has taken the state from the variables, and would lose it.
    """

    def held(state, data):
        try:
            return step(state, data)
        except StopIteration:
            keras_jax_trainer.hold(model, state)
            raise

    return held


def _changed(model, state, act):
    """Calls `act`, which may read and assign variables, and returns the state after it."""
    keras_jax_trainer.hold(model, state)
    keras_jax_trainer.sync(model)
    act()
    return keras_jax_trainer.take_state(model)


def _first(data):
    """Returns the first item of a step's data, and the data with the item still in them.

    The data are an iterator, or in older versions of Keras a list.
    """
    if isinstance(data, list | tuple):
        return data[0], data
    item = next(data)
    return item, itertools.chain([item], data)


def _specs(model, item):
    """Returns the structures of the batches of an item of Keras's iterator."""
    return keras_data.Item(item, model.steps_per_execution).structures(jax.ShapeDtypeStruct)


class JaxStepMeter(StepMeter):
    """Counts the batches that the trainer passes to its steps."""

    def watch(self, fit):
        """Starts counting the steps of a fit. Call it in a callback's `set_model`."""
        fit.at_end.callback(_wrap_made(fit.model, "train_function", self._counted))

    def _counted(self, model, step):
        def noted(item):
            for spec in _specs(model, item):
                self.count(spec)
            return item

        def counted(state, data):
            items = map(noted, data)
            return step(state, list(items) if isinstance(data, list | tuple) else items)

        return counted
