"""Submits TensorFlow's tensors to the engine, and returns the results."""

import ctypes
import functools
import pathlib
import threading

import tensorflow as tf

from easyddl.backends import xla
from easyddl.backends.submitter import Submitter
from easyddl.backends.tensorflow import private, rows
from easyddl.backends.tensorflow.step import batch_operations, is_compiled_by_xla
from easyddl.backends.tensorflow.tensors import to_dense
from easyddl.runtime import console, notices, world


class TensorFlowSubmitter(Submitter):
    """Adds operations to the graph that submit tensors to the engine's reducer, by its number.

    If XLA compiles the step, there is one custom call for all tensors: see
    `ext/bindings/xla_ffi.cpp`. In other graphs there is one asynchronous operation for each
    bucket. It submits the bucket as soon as its gradients exist, while the backward pass computes
    the gradients of the next bucket. The optimizer updates the variables of a bucket as soon as it
    is reduced. One more operation submits the rows of sparse gradients, after all buckets.
    """

    def __init__(self, engine, buckets, shapes):
        super().__init__(engine, buckets, shapes)
        self._rows = None
        self._step = _new_counter()

    def gather_rows_of(self, sparse):
        self._rows = rows.Rows(self._engine, sparse, self._shapes)

    def no_rows(self, dtype, shape):
        return rows.no_rows(dtype, shape)

    def reduce(self, tensors, weight=None):
        slices = {} if self._rows is None else self._rows.of(tensors)
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
        notices.warn_once(
            ("sparse gradient", self._engine.number),
            f"A gradient of shape {tuple(gradient.shape)} is sparse (tf.IndexedSlices), as that of "
            "an Embedding is. It is reduced as a dense gradient, with all of its rows, because XLA "
            "compiles the step and needs a fixed number of rows, because this gradient is dense on "
            "another rank, or because no rank had it in the first step. Repeated rows are summed "
            "before the optimizer gets them, which changes the squares of Adam and the effect of "
            "clipnorm. Pass jit_compile=False to gather rows, or sparse_as_dense=True if dense "
            "gradients are wanted.",
        )
        return to_dense(gradient)

    def _reduce_eagerly(self, dense, slices, weight):
        # One operation submits all buckets: an eager operation returns only when it is done.
        results = {}
        if dense:
            results.update(self._operation(0, dense, 0, weight)[0])
        if slices:
            results.update(self._rows.gather(_library(), slices, 0, weight)[0])
        return results

    def _reduce_in_graph(self, dense, slices, weight):
        self._keep_in_order(dense)
        results, counts = {}, []
        # A rank without a batch must not begin the step, not even with gradients that do not
        # depend on the batch, such as those of a regularizer.
        ready = batch_operations()
        step = self._step.read_value()
        for number, bucket in enumerate(self._buckets):
            gradients = {i: dense[i] for i in bucket}
            # A bucket is submitted when all earlier buckets have their gradients. Otherwise an
            # operation that fails before it computes one of these would make this bucket wait
            # forever.
            with tf.control_dependencies([*ready, *gradients.values()]):
                ready = [tf.no_op()]
            with tf.control_dependencies(ready):
                means, count = self._operation(number, gradients, step, weight)
            results.update(means)
            counts.append(count)
        if slices:
            parts = [part for each in slices.values() for part in (each.indices, each.values)]
            with tf.control_dependencies([*ready, *parts]):
                gathered, count = self._rows.gather(_library(), slices, step, weight)
            results.update(gathered)
            counts.append(count)
        # TensorFlow never prunes an operation that writes to a variable. So all buckets are reduced
        # at every step, even those of unused gradients, and a step begins after the step before it.
        self._step.assign_add(tf.add_n(counts))
        return results

    def _keep_in_order(self, gradients):
        """Makes the graph compute gradients in about the order of their buckets.

        TensorFlow's executor is last-in, first-out. It sometimes delays one layer's gradient until
        most others exist, and all buckets after that gradient are then submitted late. So the
        gradients of bucket n wait for those of bucket n - 2.
        """
        if len(self._buckets) < 3:
            return
        graph = tf.compat.v1.get_default_graph()
        created = {id(op): place for place, op in enumerate(graph.get_operations())}
        ops = [[gradients[i].op for i in bucket] for bucket in self._buckets]
        ops = [[op for op in bucket if id(op) in created] for bucket in ops]
        for earlier, later in zip(ops, ops[2:], strict=False):
            for op in later:
                # Only an older operation may precede a newer one, so these dependencies form no
                # cycle.
                for other in earlier:
                    if created[id(other)] < created[id(op)]:
                        private.add_control_input(op, other)

    def _operation(self, bucket, gradients, step, weight):
        """Adds the operation that submits gradients, beginning with the first one of a bucket.

        Returns:
            Pair of a dict of the results by index, and a tensor that holds the number 1.
        """
        shapes = [self._shapes[i] for i in gradients]
        _warn_of_the_host()
        with tf.device("CPU:0"):
            means, count = _library().easyddl_reduce(
                gradients=list(gradients.values()),
                step=step,
                weight=weight,
                reducer=self._engine.number,
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
                "XLA compiles this step, but its sparse gradients (tf.IndexedSlices) were "
                "registered by an earlier step that XLA did not compile, to be gathered by rows. "
                "XLA needs a fixed number of rows. Compile all steps or none, or pass "
                "sparse_as_dense=True."
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
    """Warns once if gradients are copied from the GPU to the host's memory.

    TensorFlow's C API gives the stream of a GPU to pluggable devices only. For other custom
    operations TensorFlow copies the gradients to the host, and waits for the copies.
    """
    if tf.config.get_visible_devices("GPU") and world.is_root():
        console.say(
            "warning: XLA does not compile this step, so its gradients are reduced in the host's "
            "memory, which is slow. Compile the model with jit_compile=True, or leave jit_compile "
            'at "auto": then gradients stay on the GPU.'
        )


def _new_counter():
    """Returns a new variable that counts steps, created in another thread.

    A `tf.function` allows new variables only in its first call, and counts those created in
    `tf.init_scope` as its own. It does not see variables that another thread creates.
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
    """Returns the operations of `ext/bindings/tensorflow_op.cpp`, loaded into TensorFlow."""
    core = world.engine().core
    path = pathlib.Path(core.__file__).with_name("_tensorflow_op.so")
    library = tf.load_op_library(str(path))
    connect = ctypes.CDLL(str(path)).easyddl_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_char_p
    failure = connect(core.entry_points())
    if failure is not None:
        raise RuntimeError(
            f"easyddl cannot add its operation to TensorFlow {tf.__version__}: {failure.decode()}. "
            "It supports TensorFlow 2.16 and later."
        )
    return library


@functools.cache
def register_with_xla():
    """Registers the custom call with the XLA inside TensorFlow.

    Raises:
        NotImplementedError: If this version of TensorFlow does not support custom calls.
    """
    failure = xla.library().easyddl_register_with_tensorflow()
    if failure is not None:
        raise NotImplementedError(
            f"easyddl cannot reduce gradients inside of a step that the XLA of TensorFlow "
            f"{tf.__version__} compiles: {failure.decode()}. Compile the model with "
            "jit_compile=False, or install a later TensorFlow."
        )
