"""Every private name of TensorFlow that easyddl uses. TensorFlow 2.16 to 2.21 have all of them."""

import random

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util


def global_seed():
    """Returns the seed that the user gave to `tf.random.set_seed`, or `None`.

    Without it, numbers drawn by `tf.random.normal` and the like would be the same on all ranks.
    """
    return context.global_seed()


def op_seed_state():
    """Returns the state of the generator that derives operations' seeds from the global seed.

    Without it, a restored training would draw other random numbers than an uninterrupted one.
    """
    return context.context()._rng.getstate()


def set_op_seeds(seed, state):
    """Restores what `global_seed` and `op_seed_state` returned; `None` for the first state.

    `tf.random.set_seed` would also clear TensorFlow's caches, so that each compiled function is
    prepared again.
    """
    here = context.context()
    here._seed, here._rng = seed, random.Random(seed)
    if state is not None:
        here._rng.setstate(state)


def checkpoint_writer():
    """Returns the class whose `save` writes the files of `tf.train.Checkpoint`.

    Without it, ranks that save a checkpoint to one path at once get errors of TensorFlow, such as
    `NotFoundError`, because they rename each other's files.
    """
    return checkpoint.TrackableSaver


def add_control_input(op, other):
    """Makes an operation of a graph wait for another one that was created before it.

    Without it, gradients are computed in another order than that of the buckets, and buckets are
    submitted late. Results stay correct, but steps get slower. `tf.control_dependencies` applies
    to new operations only.
    """
    op._add_control_input(other)


def is_in_xla_context():
    """Returns whether XLA compiles the graph that is traced, or a graph around it.

    Without it, a step that XLA compiles would contain an operation that XLA cannot compile.
    """
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def xla_call_module(arguments, module, shapes, dtypes, platform):
    """Puts a StableHLO module into the graph.

    Without it, no step with `jit_compile=True` can reduce gradients: `tf.raw_ops` lacks this
    operation.

    Args:
        arguments: List of tensors.
        module: String. The module, as text.
        shapes: List of tuples. The shapes of the results.
        dtypes: List of TensorFlow dtypes of the results.
        platform: `"CPU"` or `"CUDA"`.
    """
    return gen_xla_ops.xla_call_module(
        arguments,
        version=5,
        module=module,
        Sout=shapes,
        Tout=dtypes,
        platforms=[platform],
        dim_args_spec=[],
        function_list=[],
        has_token_input_output=False,
    )
