"""TensorFlow's door."""

import os
import warnings

import keras
import numpy as np
import tensorflow as tf

from easyddl import launcher


def configure():
    """Gives this rank its share of the machine, where the user has set nothing.

    Called at import, because TensorFlow takes all cores and GPUs at its first operation.
    """
    if launcher.size() is None:
        return
    try:
        _pin_gpu()
        if launcher.local_size() > 1:
            _share_cores()
    except RuntimeError:  # TensorFlow has begun, and its devices are fixed
        warnings.warn(
            "TensorFlow ran operations before easyddl was imported, so each rank may use all "
            "cores and GPUs of its machine. Import easyddl first.",
            stacklevel=2,
        )


def _pin_gpu():
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return
    mine = gpus[launcher.local_rank() % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)


def _share_cores():
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        threads = compute_threads()
        if tf.config.threading.get_intra_op_parallelism_threads() == 0:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        if tf.config.threading.get_inter_op_parallelism_threads() == 0:
            # Two at least: one may wait in an exchange while the other computes.
            tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def compute_threads():
    """The cores that this rank may use without taking another's."""
    cores = os.sched_getaffinity(0)
    try:
        bound = cores != os.sched_getaffinity(os.getppid())
    except OSError:
        bound = False
    # A launcher that binds ranks to cores has divided them already.
    return len(cores) if bound else max(1, len(cores) // launcher.local_size())


def is_tensor(x):
    """Whether TensorFlow or Keras made `x`."""
    return isinstance(x, tf.Tensor | tf.Variable | tf.IndexedSlices | keras.Variable)


def to_numpy(x):
    """The values of a tensor or variable."""
    x = _dense(x)
    if not hasattr(x, "numpy"):
        raise TypeError(
            "`x` is a symbolic tensor: collectives take values, outside of tf.function. In a "
            "custom training loop wrap the optimizer in `ddl.DistributedOptimizer`, which "
            f"exchanges gradients inside of tf.function too. Received: {x}"
        )
    return np.asarray(x.numpy())


def from_numpy(array):
    """A tensor of the same dtype."""
    return tf.convert_to_tensor(array)


def _dense(x):
    return tf.convert_to_tensor(x)


def exchange(gradients, reduce):
    """Runs `reduce` on the gradients' values, in eager mode or as a step of a graph."""
    gradients = [_dense(gradient) for gradient in gradients]
    if all(hasattr(gradient, "numpy") for gradient in gradients):
        return [from_numpy(r) for r in reduce([gradient.numpy() for gradient in gradients])]
    # One operation for all, and a stateful one, so that each step runs it exactly once.
    results = tf.numpy_function(
        lambda *arrays: reduce(list(arrays)), gradients, [g.dtype for g in gradients]
    )
    for result, gradient in zip(results, gradients, strict=True):
        result.set_shape(gradient.shape)
    return results


def check_model(model):
    """Raises an error if the model's step cannot hold an exchange."""
    if model.jit_compile and not model.run_eagerly:
        raise NotImplementedError(
            "easyddl cannot exchange gradients inside of a step that XLA compiles yet. Compile "
            f"the model with jit_compile=False. Received: model {model.name!r} with "
            f"jit_compile={model.jit_compile}"
        )


def on_first_batch(model, act):
    """Has `act` called with the first fit's batch structure, before the first step."""
    step = model.train_function

    def first(iterator):
        spec = iterator.element_spec
        model.train_function = step
        act(tf.nest.map_structure(_symbolic, spec))
        return step(iterator)

    model.train_function = first


def _symbolic(spec):
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)
