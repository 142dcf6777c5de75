"""Keras's trainer on TensorFlow.

It draws a batch from an iterator inside of its train function, which it compiles with
`tf.function`. A step is done when the train function returns; on a GPU it may still be computing.
"""

import keras
import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.step_meter import StepMeter
from easyddl.backends.tensorflow import submitter
from easyddl.backends.tensorflow.step import TraceForXla, TraceOfEagerStep, once_there_is_a_batch
from easyddl.compat import user_code
from easyddl.runtime import world


class TensorFlowTrainer(Backend):
    """How Keras trains on a `TensorFlowBackend`."""

    def check_model(self, model):
        if world.size() == 1:
            return
        strategy = model.distribute_strategy
        if tf.distribute.has_strategy() or strategy is not tf.distribute.get_strategy():
            raise ValueError(
                "tf.distribute distributes a step over several devices, and easyddl over several "
                "ranks with one device each, so they cannot be combined. Remove the strategy and "
                "its scope, and start one rank for each device with mpirun. "
                f"Received: model {model.name!r} in {type(strategy).__name__}"
            )
        if _is_compiled(model):
            submitter.register_with_xla()

    def on_first_batch(self, model, act):
        train_function = model.train_function

        def first(iterator):
            model.train_function = train_function
            # An element that is None in every batch, such as sample weights, is an OptionalSpec.
            spec = tf.nest.map_structure(
                lambda each: None if isinstance(each, tf.OptionalSpec) else each,
                iterator.element_spec,
            )
            act(spec)
            return train_function(iterator)

        model.train_function = first

    def builds_in_step(self, model):
        # A step that XLA compiles cannot create variables.
        return _has_own_step(model) and not model.jit_compile

    def build(self, model, spec):
        """Creates the variables of a model from the structure of a batch, as its step would.

        A custom `train_step` decides how the model is called: it may pass several inputs one by
        one, or never call the model itself. So that step is traced, unless it runs eagerly.
        A layer that reads values, such as scores for a plot, can only run eagerly.
        """
        if not _has_own_step(model):
            try:
                return super().build(model, spec)
            except RuntimeError as error:
                # Keras's error of a layer that cannot be traced.
                if model.run_eagerly and not user_code.is_of_handler(error):
                    return False
                raise
        if model.run_eagerly:
            return False
        _trace(model, spec)
        return True

    def trace_step(self, model, spec, preserved):
        _trace(model, spec)

    def unfinished(self, result):
        on_gpus = [x for x in tf.nest.flatten(result) if tf.is_tensor(x) and "GPU" in x.device]
        return (lambda: [x.numpy() for x in on_gpus]) if on_gpus else None


def _has_own_step(model):
    return type(model).train_step is not keras.Model.train_step


def _is_compiled(model):
    return model.jit_compile and not model.run_eagerly


def _trace(model, spec):
    """Traces the step of a model for batches of a structure, without running it."""

    def trace():
        tf.function(model.train_step, autograph=False).get_concrete_function(spec)

    if model.run_eagerly or tf.config.functions_run_eagerly():
        with TraceOfEagerStep():
            return trace()
    if not _is_compiled(model):
        return trace()
    # `tf.function` itself must not compile here: then it could not create variables.
    with TraceForXla():
        trace()


class TensorFlowStepMeter(StepMeter):
    """Counts training steps and their samples in variables, inside of the compiled step."""

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

    def count(self, batch):
        with once_there_is_a_batch():
            self._samples.assign_add(tf.cast(_length(batch), tf.int64))
            self._steps.assign_add(1)


def _length(data):
    """Returns the number of samples of a batch: the first dimension of its first tensor."""
    kinds = tf.Tensor | tf.RaggedTensor | tf.SparseTensor
    for leaf in keras.tree.flatten(data):
        if isinstance(leaf, kinds) and leaf.shape.rank != 0:
            return tf.shape(leaf)[0]
    return 0
