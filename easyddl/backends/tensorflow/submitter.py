"""How TensorFlow's tensors get into the engine and back."""

import ctypes
import functools
import pathlib
import threading
import warnings

import tensorflow as tf

from easyddl.backends import xla
from easyddl.backends.base import Backend
from easyddl.backends.submitter import Submitter
from easyddl.backends.tensorflow import private, rows
from easyddl.backends.tensorflow.step import batch_operations, is_compiled_by_xla
from easyddl.backends.tensorflow.tensors import to_dense
from easyddl.runtime import console, world


class TensorFlowReduction(Backend):
    """Gradients of a `TensorFlowBackend`."""

    def submitter(self, engine, buckets, shapes):
        return TensorFlowSubmitter(engine, buckets, shapes)


class TensorFlowSubmitter(Submitter):
    """Puts operations into the graph that hand tensors to the engine, which it finds by number.

    Where XLA compiles the step there is one custom call for all tensors: see
    `ext/bindings/xla_ffi.cpp`. In other graphs there is one asynchronous operation a bucket. A
    bucket leaves as soon as its gradients exist, while the backward pass computes those of the
    next; and the optimizer updates the bucket's variables as soon as it is back. The rows of sparse
    gradients leave after all buckets, in one operation.
    """

    def __init__(self, engine, buckets, shapes):
        super().__init__(engine, buckets, shapes)
        self._rows = None
        self._has_warned_of_sparse = False
        self._step = _new_counter()

    def gather_rows_of(self, indices):
        self._rows = rows.Rows(self._engine, indices, self._shapes)

    def no_rows(self, dtype, shape):
        return rows.no_rows(dtype, shape)

    def reduce(self, tensors, weight=None):
        slices = [] if self._rows is None else self._rows.of(tensors)
        dense = {i: self._dense(tensors[i]) for bucket in self._buckets for i in bucket}
        weight = tf.cast(1.0 if weight is None else weight, tf.float32)
        if tf.executing_eagerly():
            results = self._reduce_eagerly(dense, slices, weight)
        elif is_compiled_by_xla():
            results = self._reduce_in_xla(dense, weight)
        else:
            results = self._reduce_in_graph(dense, slices, weight)
        return [results[i] for i in sorted(results)]

    def _dense(self, gradient):
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        if world.is_root() and not self._has_warned_of_sparse:
            self._has_warned_of_sparse = True
            warnings.warn(
                f"A gradient of shape {tuple(gradient.shape)} is sparse (tf.IndexedSlices), as "
                "that of an Embedding is. It is exchanged as a dense one, because XLA compiles the "
                "step, which needs to know how many rows there are, or because another rank has a "
                "dense one. All of its rows travel. An optimizer that takes repeated rows one by "
                "one on one process, as for Adam's squares or clipnorm, gets their sum here. Pass "
                "jit_compile=False to exchange rows, or sparse_as_dense=True if that is wanted.",
                stacklevel=2,
            )
        return to_dense(gradient)

    def _reduce_eagerly(self, dense, slices, weight):
        # One operation for all buckets: each operation returns when it is done.
        results = {}
        if dense:
            results.update(self._operation(0, dense, 0, weight)[0])
        if slices:
            results.update(self._rows.gather(_library(), slices, 0, weight)[0])
        return results

    def _reduce_in_graph(self, dense, slices, weight):
        self._keep_in_order(dense)
        results, counts = {}, []
        # A rank that has no batch must not begin the step, not even with gradients that do not
        # depend on one, such as a regularizer's.
        ready = batch_operations()
        step = self._step.read_value()
        for number, bucket in enumerate(self._buckets):
            gradients = {i: dense[i] for i in bucket}
            # No bucket leaves before those that travel first have all they need: if their
            # gradients never come, because an operation fails, it would wait for ever.
            with tf.control_dependencies([*ready, *gradients.values()]):
                ready = [tf.no_op()]
            with tf.control_dependencies(ready):
                means, count = self._operation(number, gradients, step, weight)
            results.update(means)
            counts.append(count)
        if slices:
            parts = [part for each in slices for part in (each.indices, each.values)]
            with tf.control_dependencies([*ready, *parts]):
                gathered, count = self._rows.gather(_library(), slices, step, weight)
            results.update(gathered)
            counts.append(count)
        # TensorFlow never prunes what writes to a variable, so all buckets travel at every step,
        # even those of gradients that nobody uses. It also keeps the steps of a graph apart.
        self._step.assign_add(tf.add_n(counts))
        return results

    def _keep_in_order(self, gradients):
        """Makes the graph compute gradients in about the order in which they travel.

        TensorFlow's executor takes what has become ready last first. Left to itself it now and
        then puts off one layer's gradient until most others exist, and all buckets behind that one
        leave late. So the gradients of a bucket wait for those of the bucket before the last one.
        """
        if len(self._buckets) < 3:
            return
        graph = tf.compat.v1.get_default_graph()
        created = {id(op): place for place, op in enumerate(graph.get_operations())}
        ops = [[gradients[i].op for i in bucket] for bucket in self._buckets]
        ops = [[op for op in bucket if id(op) in created] for bucket in ops]
        for earlier, later in zip(ops, ops[2:], strict=False):
            for op in later:
                # An older operation can lead to a newer one, never the other way round: so these
                # dependencies close no circle.
                for other in earlier:
                    if created[id(other)] < created[id(op)]:
                        private.add_control_input(op, other)

    def _operation(self, bucket, gradients, step, weight):
        """The operation that exchanges gradients, from the first one of a bucket on.

        Returns:
            Pair of a dict of the results by index, and a tensor that holds the number 1.
        """
        shapes = [self._shapes[i] for i in gradients]
        _warn_of_the_host()
        with tf.device("CPU:0"):
            means, count = _library().easyddl_exchange(
                gradients=list(gradients.values()),
                step=step,
                weight=weight,
                exchange=self._engine.number,
                bucket=bucket,
                shapes=[n for shape in shapes for n in (len(shape), *shape)],
            )
        for mean, shape in zip(means, shapes, strict=True):
            mean.set_shape(shape)
        return dict(zip(gradients, means, strict=True)), count

    def _reduce_in_xla(self, dense, weight):
        register_with_xla()
        if self._rows is not None:
            raise RuntimeError(
                "This step is compiled by XLA, and exchanges sparse gradients (tf.IndexedSlices) "
                "by their rows, as an earlier step that was not. XLA needs to know how many rows "
                "there are. Compile all steps or none, or pass sparse_as_dense=True."
            )
        arrays = [tf.ensure_shape(each, self._shapes[i]) for i, each in dense.items()]
        types = [(array.dtype.name, tuple(array.shape)) for array in arrays]
        means = private.xla_call_module(
            [weight, *arrays],
            module=xla.module(self._engine.number, types),
            shapes=[shape for _, shape in types],
            dtypes=[array.dtype for array in arrays],
            platform="CUDA" if tf.config.get_visible_devices("GPU") else "CPU",
        )
        return dict(zip(dense, means, strict=True))


@functools.cache
def _warn_of_the_host():
    """Says once that gradients leave the GPU, where there is one.

    TensorFlow gives custom operations no GPU's stream (its C API serves pluggable devices only): it
    copies the gradients to the host, and waits for them.
    """
    if tf.config.get_visible_devices("GPU") and world.is_root():
        console.say(
            "warning: this step is not compiled by XLA, so that its gradients are exchanged by way "
            "of the host's memory, which is slow. Compile the model with jit_compile=True, or "
            'leave it at "auto": then they stay on the GPU.'
        )


def _new_counter():
    """A variable that counts steps, made outside of the graph that may be traced now.

    `tf.function` lets its variables be made in its first call alone, and takes those that are made
    in `tf.init_scope` for its own too. It knows of none that another thread makes.
    """
    made = []

    def make():
        with tf.device("CPU:0"):
            made.append(tf.Variable(0, dtype=tf.int64, trainable=False, name="easyddl_step"))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


@functools.cache
def _library():
    """The operations of `ext/bindings/tensorflow_op.cpp`, loaded into TensorFlow."""
    core = world.engine().core
    path = pathlib.Path(core.__file__).with_name("_tensorflow_op.so")
    library = tf.load_op_library(str(path))
    connect = ctypes.CDLL(str(path)).easyddl_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_char_p
    failure = connect(core.entry_points())
    if failure is not None:
        raise RuntimeError(
            f"easyddl cannot add its operation to TensorFlow {tf.__version__}: {failure.decode()}. "
            "It serves TensorFlow 2.16 and later."
        )
    return library


@functools.cache
def register_with_xla():
    """Registers the custom call with the XLA that TensorFlow holds.

    Raises:
        NotImplementedError: If this TensorFlow has no place for it.
    """
    failure = xla.library().easyddl_register_with_tensorflow()
    if failure is not None:
        raise NotImplementedError(
            f"easyddl cannot exchange gradients inside of a step that the XLA of TensorFlow "
            f"{tf.__version__} compiles: {failure.decode()}. Compile the model with "
            "jit_compile=False, or install a later TensorFlow."
        )
