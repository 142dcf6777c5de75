"""TensorFlow's door."""

import contextlib
import ctypes
import functools
import os
import pathlib
import warnings
import weakref

import keras
import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util

from easyddl.backends import xla
from easyddl.backends.tensorflow.rows import Rows, no_rows
from easyddl.compat import keras_trainer
from easyddl.runtime import affinity, console, launcher, world


def configure():
    """Gives this rank its share of the machine, where the user has set nothing.

    Called at import, because TensorFlow takes all cores and GPUs at its first operation.
    """
    if launcher.size() is None:
        return
    try:
        if launcher.knows_local_rank():
            _pin_gpu(launcher.local_rank())
        if launcher.local_size() > 1:
            _share_cores()
    except RuntimeError:  # TensorFlow has begun, and its devices are fixed
        warnings.warn(
            "TensorFlow ran operations before easyddl was imported, so each rank may use all "
            "cores and GPUs of its machine. Import easyddl first.",
            stacklevel=2,
        )


def pin_gpu(local_rank):
    """Has TensorFlow compute on the GPU of this number, unless it has begun."""
    try:
        _pin_gpu(local_rank)
    except RuntimeError:
        warnings.warn(
            "TensorFlow ran operations before the ranks knew each other, and no launcher has said "
            "which GPU is this rank's: it uses all GPUs of its machine. Call `easyddl.init()` "
            "first.",
            stacklevel=2,
        )


def _pin_gpu(local_rank):
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return
    mine = gpus[local_rank % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)


def _share_cores():
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        threads = affinity.compute_threads()
        if tf.config.threading.get_intra_op_parallelism_threads() == 0:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        if tf.config.threading.get_inter_op_parallelism_threads() == 0:
            # Two at least: one may wait in an exchange while the other computes.
            tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def is_tensor(x):
    """Whether TensorFlow or Keras made `x`."""
    return isinstance(x, tf.Tensor | tf.Variable | tf.IndexedSlices | keras.Variable)


def is_symbolic(x):
    """Whether a tensor has no values yet, because a function is being traced."""
    return isinstance(x, tf.Tensor) and not hasattr(x, "numpy")


def is_float(x):
    """Whether a tensor or variable holds floating-point numbers."""
    return tf.as_dtype(x.dtype).is_floating


def to_numpy(x):
    """The values of a tensor or variable."""
    x = tf.convert_to_tensor(x)
    if not hasattr(x, "numpy"):
        raise TypeError(
            "`x` is a symbolic tensor: collectives take values, outside of tf.function. In a "
            "custom training loop wrap the optimizer in `ddl.DistributedOptimizer`, which "
            f"exchanges gradients inside of tf.function too. Received: {x}"
        )
    return np.asarray(x.numpy())


def from_numpy(array, like):
    """A tensor of the same dtype, where `like` is one too."""
    return tf.convert_to_tensor(array)


def infers_shapes(x):
    """Keras infers shapes in a graph like any other."""
    return False


def is_variable(x):
    """Whether `x` is a variable of the framework's own."""
    return isinstance(x, tf.Variable)


def assign(variable, value):
    """Gives a variable of the framework's own the values of an array."""
    variable.assign(value)


def uncompiled(function, wholly=False):
    """The function itself: a graph is traced by calling it."""
    return function


def has_rows(gradient):
    """Whether a gradient holds rows that can travel alone."""
    # Arrays have a fixed length in XLA, and how many rows there are differs by rank and step.
    return isinstance(gradient, tf.IndexedSlices) and not _is_compiled_by_xla()


def to_dense(gradient):
    """A gradient, as a dense one if it is sparse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's words about the memory
        return tf.convert_to_tensor(gradient)


class Exchange:
    """The way of a list of gradients into the engine and back, at every step.

    Where XLA compiles the step there is one custom call for all of them: see `ext/xla_ffi.cpp`.
    In other graphs there is one asynchronous operation a bucket. A bucket leaves as soon as its
    gradients are there, while the backward pass computes those of the next; and the optimizer
    updates its variables as soon as it is back. The rows of sparse gradients leave behind all
    buckets, in one operation.

    Args:
        number: Integer. The engine's number of the exchange.
        buckets: List of lists of indices. Which gradients travel together, in which order.
        shapes: List of tuples. The shape of each gradient.
    """

    def __init__(self, number, buckets, shapes):
        self._number = number
        self._buckets = buckets
        self._shapes = shapes
        self._rows = None
        self._has_told_of_sparse = False
        with tf.init_scope(), tf.device("CPU:0"):  # also where this is made inside of a graph
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False, name="easyddl_step")

    def zeros(self, dtype, shape):
        """What a rank without a gradient takes part with."""
        return tf.zeros(shape, dtype)

    def gather_rows_of(self, indices):
        """Has all ranks' rows of some gradients brought together, which are in no bucket."""
        self._rows = Rows(self._number, indices, self._shapes)

    def no_rows(self, dtype, shape):
        """What a rank without a gradient takes part with where others have a sparse one."""
        return no_rows(dtype, shape)

    def watch(self, variables, weight):
        """In a graph gradients set off when they are there in any case."""
        return None

    def unwatch(self):
        """There is nothing to end."""

    def stop(self):
        """Nothing sets off but by `reduce`."""
        return None

    def close(self):
        """TensorFlow's tensors are its own."""
        return None

    def reduce(self, gradients, weight=None):
        """The mean of each gradient over all ranks, by weight; or what else the exchange makes."""
        slices = [] if self._rows is None else self._rows.of(gradients)
        in_buckets = [i for bucket in self._buckets for i in bucket]
        gradients = {i: self._dense(gradients[i]) for i in in_buckets}
        weight = tf.cast(1.0 if weight is None else weight, tf.float32)
        if tf.executing_eagerly():
            return self._at_once(in_buckets, gradients, slices, weight)
        if _is_compiled_by_xla():
            return self._custom_call(in_buckets, gradients, weight)
        self._keep_in_order(gradients)
        results, counts = {}, []
        # A rank that has no batch must not begin the step, not even with gradients that do not
        # depend on one, such as a regularizer's.
        ready = _data_operations()
        step = self._step.read_value()
        for number, bucket in enumerate(self._buckets):
            # No bucket sets off before those that travel first have all they need: if their
            # gradients never come, because an operation fails, it would wait for ever.
            with tf.control_dependencies([*ready, *(gradients[i] for i in bucket)]):
                ready = [tf.no_op()]
            with tf.control_dependencies(ready):
                means, count = self._operation(number, bucket, gradients, step, weight)
            results.update(zip(bucket, means, strict=True))
            counts.append(count)
        if slices:
            parts = [part for each in slices for part in (each.indices, each.values)]
            with tf.control_dependencies([*ready, *parts]):
                everyones, count = self._rows.gather(_library(), slices, step, weight)
            results.update(everyones)
            counts.append(count)
        # What writes to a variable is never pruned, so that all buckets travel at every step,
        # even those of gradients that nobody uses. It also keeps the steps of a graph apart.
        self._step.assign_add(tf.add_n(counts))
        return [results[i] for i in sorted(results)]

    def _at_once(self, order, gradients, slices, weight):
        """In eager mode: one operation for all buckets, since each waits until it is done."""
        results = {}
        if order:
            means, _ = self._operation(0, order, gradients, 0, weight)
            results.update(zip(order, means, strict=True))
        if slices:
            results.update(self._rows.gather(_library(), slices, 0, weight)[0])
        return [results[i] for i in sorted(results)]

    def _keep_in_order(self, gradients):
        """Has the graph compute gradients in about the order in which they travel.

        TensorFlow's executor takes what has become ready last first. Left to itself it now and
        then puts off one layer's gradient until most others are there, and all buckets behind
        that one set off late. So those of a bucket wait for those of two buckets before.
        """
        if len(self._buckets) < 3:
            return
        graph = tf.compat.v1.get_default_graph()
        made = {id(op): place for place, op in enumerate(graph.get_operations())}
        ops = [[gradients[i].op for i in bucket] for bucket in self._buckets]
        ops = [[op for op in bucket if id(op) in made] for bucket in ops]
        for earlier, later in zip(ops, ops[2:], strict=False):
            for op in later:
                # What was made before can lead to what was made after, never the other way round:
                # so no circle is made.
                for other in earlier:
                    if made[id(other)] < made[id(op)]:
                        op._add_control_input(other)

    def _custom_call(self, order, gradients, weight):
        _register_with_xla()
        if self._rows is not None:
            raise RuntimeError(
                "This step is compiled by XLA, and exchanges sparse gradients (tf.IndexedSlices) "
                "by their rows, as an earlier step that was not. XLA needs to know how many rows "
                "there are. Compile all steps or none, or pass sparse_as_dense=True."
            )
        arrays = [tf.ensure_shape(gradients[i], self._shapes[i]) for i in order]
        types = [(array.dtype.name, tuple(array.shape)) for array in arrays]
        means = gen_xla_ops.xla_call_module(
            [weight, *arrays],
            version=5,
            module=xla.module(self._number, types),
            Sout=[shape for _, shape in types],
            Tout=[array.dtype for array in arrays],
            platforms=["CUDA" if tf.config.get_visible_devices("GPU") else "CPU"],
            dim_args_spec=[],
            function_list=[],
            has_token_input_output=False,
        )
        means = dict(zip(order, means, strict=True))
        return [means[i] for i in sorted(means)]

    def _dense(self, gradient):
        if not isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        if world.is_root() and not self._has_told_of_sparse:
            self._has_told_of_sparse = True
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

    def _operation(self, bucket, indices, gradients, step, weight):
        shapes = [self._shapes[i] for i in indices]
        _tell_of_the_host()
        with tf.device("CPU:0"):
            means, count = _library().easyddl_exchange(
                gradients=[gradients[i] for i in indices],
                step=step,
                weight=weight,
                exchange=self._number,
                bucket=bucket,
                shapes=[n for shape in shapes for n in (len(shape), *shape)],
            )
        for mean, shape in zip(means, shapes, strict=True):
            mean.set_shape(shape)
        return means, count


@functools.cache
def _tell_of_the_host():
    """Says once that gradients leave the GPU, where there is one.

    TensorFlow gives operations of others no GPU's stream (its C API serves pluggable devices only):
    it copies the gradients to the host, and waits for them.
    """
    if tf.config.get_visible_devices("GPU") and world.is_root():
        console.say(
            "warning: this step is not compiled by XLA, so that its gradients are exchanged by way "
            "of the host's memory, which is slow. Compile the model with jit_compile=True, or "
            'leave it at "auto": then they stay on the GPU.'
        )


_data_operations_of = weakref.WeakKeyDictionary()  # by graph, which may be large


def _data_operations():
    """What brings the batch into the graph: its arguments, or an iterator."""
    graph = tf.compat.v1.get_default_graph()
    if graph not in _data_operations_of:
        _data_operations_of[graph] = _find_data_operations(graph)
    return _data_operations_of[graph]


def _find_data_operations(graph):
    handles = (tf.resource, tf.variant)
    arguments = [x.op for x in getattr(graph, "inputs", []) if x.dtype not in handles]
    return [
        *arguments,
        *(op for op in graph.get_operations() if op.type.startswith("IteratorGetNext")),
    ]


def once_there_is_a_batch():
    """In a graph: has what is made inside of it run only in steps that have a batch.

    At the end of data whose length nobody knows, Keras runs the step once more, until it fails for
    want of a batch. What does not depend on one, such as the count of the optimizer's steps, may
    have run by then: on some ranks, in some runs.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(_data_operations())


def changing(train_step, model, begin):
    """A `train_step` that gives variables other values than it has computed.

    Args:
        train_step: As Keras's trainer has it.
        model: The model of the step.
        begin: Function that is called before the step. It returns a list of Keras variables, and a
            function of two lists of their values, before the step and after it, that returns the
            values that they get.
    """

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


def outside_of_step():
    """A context in which variables have values, also where a step is traced."""
    return tf.init_scope()


def begin_without_batch(model):
    """Does nothing: Keras asks the data for their structure, not for a batch."""
    return lambda: None


def random_state():
    """`None`: Keras's layers draw by seeds of their own."""
    return None


def set_random_state(captured):
    """Nothing is captured."""


def op_seeds():
    """What operations such as `tf.random.normal` take their seeds from.

    Returns:
        Pair of the seed that the user has set and the state of the generator that makes seeds of
        operations from it; `None` if none is set, and so each process draws other numbers.
    """
    seed = context.global_seed()
    return None if seed is None else (seed, context.context()._rng.getstate())


def set_op_seeds(seeds):
    """Sets what `op_seeds` returned; the generator begins anew where its state is `None`."""
    seed, state = seeds
    tf.random.set_seed(seed)
    if state is not None:
        context.context()._rng.setstate(state)


def random_state_of_another_rank(captured, distance):
    """Nothing is captured."""
    return None


@functools.cache
def _library():
    """The operations of `ext/tensorflow_op.cpp`, added to the TensorFlow that is loaded."""
    core = world.engine().core
    path = pathlib.Path(core.__file__).with_name("_tensorflow_op.so")
    library = tf.load_op_library(str(path))
    connect = ctypes.CDLL(str(path)).easyddl_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_char_p
    failure = connect(core.exchange_door())
    if failure is not None:
        raise RuntimeError(
            f"easyddl cannot add its operation to TensorFlow {tf.__version__}: {failure.decode()}. "
            "It serves TensorFlow 2.16 and later."
        )
    return library


_traced_for_xla = []  # models whose step is traced as if it were compiled


def _is_compiled_by_xla():
    """Whether the graph that is traced is, or will be inside of, one with `jit_compile=True`."""
    if _traced_for_xla:
        return True
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


@functools.cache
def _register_with_xla():
    failure = xla.library().easyddl_register_with_tensorflow()
    if failure is not None:
        raise NotImplementedError(
            f"easyddl cannot exchange gradients inside of a step that the XLA of TensorFlow "
            f"{tf.__version__} compiles: {failure.decode()}. Compile the model with "
            "jit_compile=False, or install a later TensorFlow."
        )


def check_model(model):
    """Raises an error if the model's step cannot hold an exchange."""
    if world.size() == 1:
        return
    strategy = keras_trainer.strategy_of(model)
    if strategy is None and tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    if strategy is not None:
        raise ValueError(
            "tf.distribute shares a step out to several devices, and easyddl to several ranks of "
            "one device each. Leave out the strategy and its scope, and start a rank for each "
            f"device by mpirun. Received: model {model.name!r} in {type(strategy).__name__}"
        )
    if model.jit_compile and not model.run_eagerly:
        _register_with_xla()


def on_first_batch(model, act):
    """Has `act` called with the first fit's batch structure, before the first step."""
    step = model.train_function

    def first(iterator):
        model.train_function = step
        # What is always None in a batch, such as sample weights, is an optional in its structure.
        spec = tf.nest.map_structure(
            lambda each: None if isinstance(each, tf.OptionalSpec) else each, iterator.element_spec
        )
        act(spec)
        return step(iterator)

    model.train_function = first


def symbolic_batch(spec):
    """A batch of a structure, in Keras's symbols."""
    return tf.nest.map_structure(
        lambda each: each and keras.KerasTensor(tuple(each.shape), each.dtype.name), spec
    )


def builds_in_step(model):
    """Whether a model's optimizers get their variables in its first step."""
    # XLA makes no variables.
    return _has_own_step(model) and not model.jit_compile


def _has_own_step(model):
    return type(model).train_step is not keras.Model.train_step


def build(model, spec):
    """Makes a model's variables before its first step, by a batch's structure.

    A `train_step` of the user's own says how the model takes a batch: it may pass several inputs
    to it one by one, or never call the model itself. So that step is traced.

    Returns:
        Boolean: whether the variables are there. They are not where such a step runs eagerly.
    """
    if not _has_own_step(model):
        keras_trainer.build(model, symbolic_batch(spec))
    elif model.run_eagerly:
        return False
    else:
        trace_step(model, spec)
    return True


def trace_step(model, spec):
    """Traces a model's step for batches of a structure, and computes nothing."""
    is_compiled = model.jit_compile and not model.run_eagerly
    if is_compiled:  # which `tf.function` must not do here: it would make no variables
        _traced_for_xla.append(model)
    try:
        tf.function(model.train_step, autograph=False).get_concrete_function(spec)
    finally:
        if is_compiled:
            _traced_for_xla.remove(model)


def differentiable(forward, backward):
    """A function of a tensor, with a function of the upstream gradient that makes its own."""
    return tf.custom_gradient(lambda x: (forward(x), backward))


def unless(condition, act):
    """Calls `act`, which changes nothing where `condition` holds, where it does not."""
    keras.ops.cond(condition, lambda: None, act)


def scope_of(x):
    """What tensors can be used together: those of a graph, or `None` outside of one."""
    return x.graph if is_symbolic(x) else None


def is_current(x):
    """Whether a tensor noted earlier can be used where the code is now."""
    here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    return scope_of(x) is here


def begun(result):
    """A step is done when Keras's trainer goes on."""
    return lambda: None


def finish(model):
    """A step is done when Keras's trainer goes on."""


def synced(model):
    """Variables hold their values at any time."""


def unwrapped(function):
    """The function that Keras's trainer has made: nothing wraps it here."""
    return function


def skip_steps(model, steps):
    """Has the first steps of a fit draw their data and train nothing."""
    step = model.train_function
    left = steps

    def skip(iterator):
        nonlocal left
        for _ in range(min(left, model.steps_per_execution)):
            next(iterator)
            left -= 1
        if left == 0:
            model.train_function = step
        return model.get_metrics_result()

    model.train_function = skip


class StepMeter:
    """Counts what training steps take, from inside, where they are compiled.

    Attributes:
        samples: How many samples they have taken.
        steps: How many steps that were.
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
        """Measures the steps of a fit. To be called in a callback's `set_model`."""
        fit.wrap_train_step(self._counted)

    def _counted(self, train_step):
        """A `train_step(data)` that counts what it takes."""

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
