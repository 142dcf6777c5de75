"""Keras's trainer on TensorFlow.

It draws a batch from an iterator inside of its train function, which it compiles with
`tf.function`. A step is done when the train function returns.
"""

import functools

import keras
import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import submitter
from easyddl.backends.tensorflow.step import once_there_is_a_batch, traced_for_xla
from easyddl.compat import keras_trainer
from easyddl.runtime import world


class TensorFlowTrainer(Backend):
    """How Keras trains on a `TensorFlowBackend`."""

    def check_model(self, model):
        if world.size() == 1:
            return
        strategy = keras_trainer.strategy_of(model)
        if strategy is None and tf.distribute.has_strategy():
            strategy = tf.distribute.get_strategy()
        if strategy is not None:
            raise ValueError(
                "tf.distribute shares a step out to several devices, and easyddl to several ranks "
                "of one device each. Leave out the strategy and its scope, and start a rank for "
                "each device by mpirun. "
                f"Received: model {model.name!r} in {type(strategy).__name__}"
            )
        if _is_compiled(model):
            submitter.register_with_xla()

    def on_first_batch(self, model, act):
        train_function = model.train_function

        def first(iterator):
            model.train_function = train_function
            # What is always None in a batch, such as sample weights, is an optional in the spec.
            spec = tf.nest.map_structure(
                lambda each: None if isinstance(each, tf.OptionalSpec) else each,
                iterator.element_spec,
            )
            act(spec)
            return train_function(iterator)

        model.train_function = first

    def symbolic_batch(self, spec):
        return tf.nest.map_structure(
            lambda each: each and keras.KerasTensor(tuple(each.shape), each.dtype.name), spec
        )

    def builds_in_step(self, model):
        # XLA makes no variables.
        return _has_own_step(model) and not model.jit_compile

    def build(self, model, spec):
        """Makes the variables of a model from the structure of a batch, as its step would.

        A `train_step` of the user's own decides how the model takes a batch: it may pass several
        inputs one by one, or never call the model itself. So that step is traced. It cannot be if
        it runs eagerly.
        """
        if not _has_own_step(model):
            return super().build(model, spec)
        if model.run_eagerly:
            return False
        _trace(model, spec)
        return True

    def trace_step(self, model, spec, preserved):
        _trace(model, spec)

    def skip_steps(self, model, steps):
        train_function = model.train_function
        left = steps

        def skip(iterator):
            nonlocal left
            for _ in range(min(left, model.steps_per_execution)):
                next(iterator)
                left -= 1
            if left == 0:
                model.train_function = train_function
            return model.get_metrics_result()

        model.train_function = skip

    def step_meter(self):
        return TensorFlowStepMeter()


def _has_own_step(model):
    return type(model).train_step is not keras.Model.train_step


def _is_compiled(model):
    return model.jit_compile and not model.run_eagerly


def _trace(model, spec):
    """Traces the step of a model for batches of a structure, and computes nothing."""

    def trace():
        tf.function(model.train_step, autograph=False).get_concrete_function(spec)

    if not _is_compiled(model):
        return trace()
    # `tf.function` itself must not compile here: it would make no variables.
    with traced_for_xla(model):
        trace()


class TensorFlowStepMeter:
    """Counts training steps and their samples in variables, inside of the compiled step.

    Attributes:
        samples: How many samples the steps have taken.
        steps: How many steps there were.
    """

    def __init__(self):
        with tf.init_scope():
            self._samples = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def samples(self):
        return int(self._samples)

    @property
    def steps(self):
        return int(self._steps)

    def watch(self, fit):
        """Counts the steps of a fit. To be called in a callback's `set_model`."""
        fit.wrap_train_step(self._counted)

    def _counted(self, train_step):
        @functools.wraps(train_step)
        def step(data):
            with once_there_is_a_batch():
                self._samples.assign_add(tf.cast(_length(data), tf.int64))
                self._steps.assign_add(1)
            return train_step(data)

        return step


def _length(data):
    """The number of samples of a batch: the first dimension of its first tensor."""
    kinds = tf.Tensor | tf.RaggedTensor | tf.SparseTensor
    for leaf in keras.tree.flatten(data):
        if isinstance(leaf, kinds) and leaf.shape.rank != 0:
            return tf.shape(leaf)[0]
    return 0
