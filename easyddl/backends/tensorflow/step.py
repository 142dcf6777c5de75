"""A training step on TensorFlow, while its graph is traced or it runs eagerly."""

import contextlib
import functools
import weakref

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import private


class TensorFlowStep(Backend):
    """The training step of a `TensorFlowBackend`."""

    def differentiable(self, forward, backward):
        return tf.custom_gradient(lambda x: (forward(x), backward))

    def scope_of(self, x):
        return x.graph if is_symbolic(x) else None

    def is_current(self, x):
        here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        return self.scope_of(x) is here

    def once_there_is_a_batch(self):
        return once_there_is_a_batch()

    def changing(self, train_step, model, begin):
        @functools.wraps(train_step)
        def step(data):
            changed, change = begin()
            before = [tf.identity(variable.value) for variable in changed]
            result = train_step(data)
            if changed:
                with once_there_is_a_batch():
                    after = [tf.identity(variable.value) for variable in changed]
                    for variable, value in zip(changed, change(before, after), strict=True):
                        variable.assign(value)
            return result

        return step

    def outside_of_step(self):
        return tf.init_scope()


def is_symbolic(x):
    """Whether a tensor has no values yet, because a function is being traced."""
    return isinstance(x, tf.Tensor) and not hasattr(x, "numpy")


def once_there_is_a_batch():
    """In a graph: makes the operations that are created inside depend on the batch.

    At the end of data of unknown length, Keras runs the step once more, until it fails for want of
    a batch. An operation that does not depend on the batch, such as the increment of the
    optimizer's step count, may have run by then: on some ranks, in some runs.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(batch_operations())


_batch_operations = weakref.WeakKeyDictionary()  # by graph, which may be large to search


def batch_operations():
    """The operations that bring the batch into the current graph: its inputs, or an iterator's."""
    graph = tf.compat.v1.get_default_graph()
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


_traced_for_xla = []  # models whose step is traced as if it were compiled


@contextlib.contextmanager
def traced_for_xla(model):
    """A context in which a model's step is traced as for XLA, without `jit_compile=True`."""
    _traced_for_xla.append(model)
    try:
        yield
    finally:
        _traced_for_xla.remove(model)


def is_compiled_by_xla():
    """Whether the graph that is traced is, or will be inside of, one with `jit_compile=True`."""
    return bool(_traced_for_xla) or private.is_in_xla_context()
