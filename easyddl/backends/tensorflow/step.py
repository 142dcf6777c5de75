"""A training step on TensorFlow, while its graph is traced or it runs eagerly."""

import contextlib
import functools
import weakref

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import private
from easyddl.compat import user_code
from easyddl.steps import context

_ANY_SIZE = 24  # of a dimension whose size is unknown; a loss may divide the batch into pairs


class TensorFlowStep(Backend):
    """The training step of a `TensorFlowBackend`."""

    def is_eager(self):
        return tf.executing_eagerly() or bool(context.active(TraceOfEagerStep))

    def differentiable(self, forward, backward):
        return tf.custom_gradient(lambda x: (forward(x), backward))

    def has_fixed_shape(self, function, arguments):
        def spec_of(x):
            shape = [_ANY_SIZE if size is None else size for size in x.shape]
            return tf.TensorSpec(shape, x.dtype)

        specs = tf.nest.map_structure(spec_of, arguments)
        with user_code.suppress(tf.errors.OpError):
            traced = tf.function(function, autograph=False).get_concrete_function(*specs)
            return traced.outputs[0].shape.is_fully_defined()
        return False  # it needs values, or other sizes

    def scope_of(self, x):
        return x.graph if is_symbolic(x) else None

    def scope(self):
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def is_current(self, x):
        return self.scope_of(x) is self.scope()

    def once_there_is_a_batch(self):
        return once_there_is_a_batch()

    def noting_variables(self, train_step, note):
        @functools.wraps(train_step)
        def step(*arguments):
            result = train_step(*arguments)
            if not tf.executing_eagerly():
                graph = tf.compat.v1.get_default_graph()
                note(lambda: graph.variables)
            return result

        return step

    def outside_of_step(self):
        return tf.init_scope()


def is_symbolic(x):
    """Returns whether a tensor has no values yet, because a function is being traced."""
    return isinstance(x, tf.Tensor) and not hasattr(x, "numpy")


def once_there_is_a_batch():
    """Returns a context in which new operations of a graph depend on the batch.

    At the end of data of unknown length, Keras runs the step once more, and the step fails because
    there is no batch. An operation that does not depend on the batch, such as the increment of the
    optimizer's step count, may already have run then, on some ranks and in some runs.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(batch_operations())


_batch_operations = weakref.WeakKeyDictionary()  # by graph; the search in a large graph is slow


def batch_operations(graph=None):
    """Returns the operations that bring the batch into a graph: inputs or reads of an iterator.

    Args:
        graph: `tf.Graph`, or `None` for the current one.
    """
    graph = tf.compat.v1.get_default_graph() if graph is None else graph
    if graph not in _batch_operations:
        _batch_operations[graph] = _find_batch_operations(graph)
    return _batch_operations[graph]


def _find_batch_operations(graph):
    handles = (tf.resource, tf.variant)
    inputs = [x.op for x in getattr(graph, "inputs", []) if x.dtype not in handles]
    return [
        *inputs,
        *(op for op in graph.get_operations() if op.type.startswith("IteratorGetNext")),
    ]


class TraceOfEagerStep(context.Scope):
    """The trace of a model's step that runs eagerly on the other ranks."""


class TraceForXla(context.Scope):
    """The trace of a model's step as if XLA compiled it, without `jit_compile=True`."""


def is_compiled_by_xla():
    """Returns whether XLA compiles, or will compile, the graph that is being traced."""
    return bool(context.active(TraceForXla)) or private.is_in_xla_context()
