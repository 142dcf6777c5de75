"""Keras's trainer on JAX.

Its step is a pure function of a state: the values of all variables. While an epoch lasts they are
in that state alone, until `model.jax_state_sync()` gives them to the variables; then the next
step takes the variables' values. A step may still be computing when the trainer goes on.
"""

import functools
import itertools

import jax
import keras

from easyddl.backends import deferred_build
from easyddl.backends.base import Backend
from easyddl.backends.host_step_meter import HostStepMeter
from easyddl.compat import keras_jax_trainer, patches
from easyddl.runtime import world


class JaxTrainer(Backend):
    """How Keras trains on a `JaxBackend`."""

    def check_model(self, model):
        if getattr(keras.config, "is_nnx_enabled", lambda: False)():
            raise NotImplementedError(
                "easyddl does not know the variables of Flax's NNX. Leave KERAS_NNX_ENABLED out. "
                f"Received: model {model.name!r}"
            )
        if world.size() > 1 and jax.default_backend() not in ("cpu", "gpu"):
            raise NotImplementedError(
                "easyddl exchanges JAX's gradients on CPUs and NVIDIA GPUs. Set JAX_PLATFORMS to "
                f"cpu or cuda. Received: model {model.name!r} on {jax.default_backend()!r}"
            )

    def begin_without_batch(self, model):
        """Lets Keras begin a fit, and an evaluation in it, on a rank that has no batch.

        Keras would fail to build the model, have no logs, and lose the values of all variables.

        Returns:
            Function that undoes it.
        """
        undo = [deferred_build.defer_without_batch(model)]
        undo += [_wrap_made(model, f"{kind}_function", _held) for kind in ("train", "test")]

        def undo_all():
            for each in reversed(undo):
                each()

        return undo_all

    def on_first_batch(self, model, act):
        step = model.train_function

        def first(state, data):
            model.train_function = step
            try:
                batch, data = _first(data)
            except StopIteration:
                return {}, state  # a fit that ends its first epoch without any logs fails
            return step(_changed(model, state, lambda: act(_spec(batch))), data)

        model.train_function = first

    def symbolic_batch(self, spec):
        def symbol(each):
            dtype = each and keras.backend.standardize_dtype(each.dtype)
            return each and keras.KerasTensor(each.shape, dtype)

        return keras.tree.map_structure(symbol, spec)

    def trace_step(self, model, spec, preserved):
        self.synced(model)
        # Metrics are built too: what tracing built would be of no use afterwards.
        self.build(model, spec)
        jax.eval_shape(model.train_step, keras_jax_trainer.copy_state(model), spec)

    def unwrapped(self, function):
        while hasattr(function, "easyddl_wraps"):
            function = function.easyddl_wraps
        return function

    def begun(self, result):
        logs, state = result
        # The next step takes the memory of the state, so only the logs can be waited for then.
        arrays = [leaf for leaf in jax.tree.leaves(logs) if isinstance(leaf, jax.Array)]
        if not arrays:
            jax.block_until_ready(state)
            return None
        return lambda: jax.block_until_ready(arrays)

    def finish(self, model):
        jax.block_until_ready(keras_jax_trainer.arrays_of(model))

    def synced(self, model):
        keras_jax_trainer.sync(model)

    def skip_steps(self, model, steps):
        step = model.train_function
        left = steps

        def skip(state, data):
            nonlocal left
            is_list = isinstance(data, list | tuple)
            for _ in range(min(left, model.steps_per_execution)):
                if not is_list:
                    next(data)
                left -= 1
            if left == 0:
                model.train_function = step
            logs = {}
            state = _changed(model, state, lambda: logs.update(model.get_metrics_result()))
            return logs, state

        model.train_function = _held(model, skip)

    def step_meter(self):
        return JaxStepMeter()


def _wrap_made(model, name, wrap):
    """Wraps a function that the trainer makes, whenever it is made.

    Args:
        model: A Keras model.
        name: `"train_function"` or `"test_function"`.
        wrap: Function of the model and of what the trainer made. It returns another function.

    Returns:
        Function that undoes it.
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
    """A step that saves the state where data end: Keras has taken it from the variables."""

    def held(state, data):
        try:
            return step(state, data)
        except StopIteration:
            keras_jax_trainer.hold(model, state)
            raise

    return held


def _changed(model, state, act):
    """The state after `act`, which may read and assign variables."""
    keras_jax_trainer.hold(model, state)
    keras_jax_trainer.sync(model)
    act()
    return keras_jax_trainer.take_state(model)


def _first(data):
    """The first batch of a step's data, and the data with it in its place.

    They are an iterator, or in older versions of Keras a list.
    """
    if isinstance(data, list | tuple):
        return data[0], data
    batch = next(data)
    return batch, itertools.chain([batch], data)


def _spec(batch):
    return keras.tree.map_structure(
        lambda x: None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype), batch
    )


class JaxStepMeter(HostStepMeter):
    """Counts what the trainer hands to its steps."""

    def watch(self, fit):
        """Counts the steps of a fit. To be called in a callback's `set_model`."""
        fit.at_end.callback(_wrap_made(fit.model, "train_function", self._counted))

    def _counted(self, model, step):
        def counted(state, data):
            if isinstance(data, list | tuple):
                for batch in data:
                    self.count(batch)
                return step(state, data)
            return step(state, _CountingIterator(data, self.count))

        return counted


class _CountingIterator:
    """An iterator of batches that counts each."""

    def __init__(self, batches, count):
        self._batches = batches
        self._count = count

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self._batches)
        self._count(batch)
        return batch
