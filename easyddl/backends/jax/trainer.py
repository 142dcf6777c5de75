"""How easyddl sees the steps of Keras's trainer on JAX.

The step is a pure function of a state: the values of all variables. While an epoch lasts they are
in that state alone, until `model.jax_state_sync()` gives them to the variables; then the next
step takes the variables' values. A step may still be computing when the trainer goes on.
"""

import functools
import itertools

import jax
import keras

from easyddl.backends import deferred_build
from easyddl.backends.host_step_meter import HostStepMeter
from easyddl.compat import keras_jax_trainer, keras_trainer, patches


def begin_without_batch(model):
    """Has Keras begin a fit, and an evaluation in it, on a rank that has no batch.

    It would fail to build the model, have no logs, and lose the values of all variables.

    Returns:
        Function that takes that back.
    """
    undo = [deferred_build.put_off_without_batch(model)]
    undo += [_wrap_made(model, f"{kind}_function", _held) for kind in ("train", "test")]

    def take_back():
        for each in reversed(undo):
            each()

    return take_back


def _wrap_made(model, name, wrap):
    """Has a function that the trainer makes wrapped, whenever it is made.

    Returns:
        Function that takes that back.
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

    def take_back():
        undo()
        function = getattr(model, name)
        if any(function is each for each in made):
            setattr(model, name, function.easyddl_wraps)

    undo = patches.replace(model, maker, make)
    return take_back


def unwrapped(function):
    """The function that the trainer has made, without what wraps it for the length of a fit."""
    while hasattr(function, "easyddl_wraps"):
        function = function.easyddl_wraps
    return function


def _held(model, step):
    """A step that keeps the state where data end, which Keras has taken from the variables."""

    def held(state, data):
        try:
            return step(state, data)
        except StopIteration:
            keras_jax_trainer.hold(model, state)
            raise

    return held


def synced(model):
    """Has a model's variables hold the values that they have after the last step."""
    keras_jax_trainer.sync(model)


def begun(result):
    """What waits until the step is done that has returned this; `None` where it is."""
    logs, state = result
    # The state is given away to the next step, and cannot be waited for then.
    arrays = [leaf for leaf in jax.tree.leaves(logs) if isinstance(leaf, jax.Array)]
    if not arrays:
        jax.block_until_ready(state)
        return None
    return lambda: jax.block_until_ready(arrays)


def finish(model):
    """Waits until all steps that the trainer has begun are done."""
    jax.block_until_ready(keras_jax_trainer.arrays_of(model))


def _first(data):
    """The first batch of a step's data, and the data with it in its place.

    They are an iterator, or in older versions of Keras a list.
    """
    if isinstance(data, list | tuple):
        return data[0], data
    batch = next(data)
    return batch, itertools.chain([batch], data)


def on_first_batch(model, act):
    """Has `act` called with the first fit's batch structure, before the first step."""
    step = model.train_function

    def first(state, data):
        model.train_function = step
        try:
            batch, data = _first(data)
        except StopIteration:
            return {}, state  # a fit that ends its first epoch without any logs fails
        return step(_changed(model, state, lambda: act(_spec(batch))), data)

    model.train_function = first


def _changed(model, state, act):
    """The state after `act`, which may read and assign variables."""
    keras_jax_trainer.hold(model, state)
    keras_jax_trainer.sync(model)
    act()
    return keras_jax_trainer.take_state(model)


def _spec(batch):
    return keras.tree.map_structure(
        lambda x: None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype), batch
    )


def symbolic_batch(spec):
    """A batch of a structure, in Keras's symbols."""

    def symbol(each):
        dtype = each and keras.backend.standardize_dtype(each.dtype)
        return each and keras.KerasTensor(each.shape, dtype)

    return keras.tree.map_structure(symbol, spec)


def changing(train_step, model, begin):
    """A `train_step` that gives variables other values than it has computed.

    Args:
        train_step: As Keras's trainer has it.
        model: The model of the step.
        begin: Function that is called before the step. It returns a list of Keras variables that
            are not trainable, and a function of two lists of their values, before the step and
            after it, that returns the values that they get.
    """

    @functools.wraps(train_step)
    def step(state, data):
        variables, change = begin()
        result, after = train_step(state, data)
        if not variables:
            return result, after
        place_of = {id(v): i for i, v in enumerate(model.non_trainable_variables)}
        places = [place_of[id(variable)] for variable in variables]
        trainable, values, *others = after
        changed = change([state[1][i] for i in places], [values[i] for i in places])
        values = list(values)
        for i, value in zip(places, changed, strict=True):
            values[i] = value
        return result, (trainable, values, *others)

    return step


def builds_in_step(model):
    """Never: Keras builds an optimizer before."""
    return False


def build(model, spec):
    """Makes a model's variables before its first step, by a batch's structure: always `True`."""
    keras_trainer.build(model, symbolic_batch(spec))
    return True


def trace_step(model, spec):
    """Traces a model's step for batches of a structure, and computes nothing."""
    synced(model)
    # Of metrics too: what was built while tracing would be of no use afterwards.
    keras_trainer.build(model, symbolic_batch(spec))
    jax.eval_shape(model.train_step, keras_jax_trainer.copy_state(model), spec)


def skip_steps(model, steps):
    """Has the first steps of a fit draw their data and train nothing."""
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


class StepMeter(HostStepMeter):
    """Counts what the trainer hands to its steps."""

    def watch(self, fit):
        """Measures the steps of a fit. To be called in a callback's `set_model`."""
        fit.at_end.callback(_wrap_made(fit.model, "train_function", self._counted))

    def _counted(self, model, step):
        def counted(state, data):
            if isinstance(data, list | tuple):
                for batch in data:
                    self.count(batch)
                return step(state, data)
            return step(state, _Counting(data, self.count))

        return counted


class _Counting:
    """An iterator of batches that tells of each."""

    def __init__(self, batches, count):
        self._batches = batches
        self._count = count

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self._batches)
        self._count(batch)
        return batch
