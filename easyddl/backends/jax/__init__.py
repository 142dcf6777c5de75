"""JAX's door."""

import contextlib
import functools
import os
import pathlib
import warnings
import weakref

import jax
import keras
import numpy as np
from jax import numpy as jnp
from jax.experimental.sparse import JAXSparse
from jax.extend.core import Primitive
from jax.interpreters import mlir

from easyddl.backends import xla
from easyddl.backends.jax.trainer import (
    StepMeter,
    begin_without_batch,
    begun,
    build,
    builds_in_step,
    changing,
    finish,
    on_first_batch,
    skip_steps,
    symbolic_batch,
    synced,
    trace_step,
    unwrapped,
)
from easyddl.compat import keras_scope
from easyddl.runtime import affinity, launcher, world

__all__ = [
    "StepMeter",
    "begin_without_batch",
    "begun",
    "build",
    "builds_in_step",
    "changing",
    "finish",
    "on_first_batch",
    "skip_steps",
    "symbolic_batch",
    "synced",
    "trace_step",
    "unwrapped",
]

_VISIBLE, _ALL = "jax_cuda_visible_devices", "all"


def configure():
    """Gives this rank its share of the machine, where the user has set nothing.

    Called at import, because JAX takes all cores and GPUs at its first operation.
    """
    if launcher.size() is None:
        return
    if _has_begun():
        warnings.warn(
            "JAX ran operations before easyddl was imported, so each rank may use all cores and "
            "GPUs of its machine. Import easyddl first.",
            stacklevel=2,
        )
        return
    if launcher.knows_local_rank():
        _pin_gpu(launcher.local_rank())
    if launcher.local_size() > 1:
        _share_cores()


def _has_begun():
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def pin_gpu(local_rank):
    """Has JAX compute on the GPU of this number, unless the user has chosen one or it has begun."""
    if not _has_begun():
        _pin_gpu(local_rank)
    elif jax.default_backend() == "gpu" and jax.local_device_count() > 1:
        warnings.warn(
            "JAX ran operations before the ranks knew each other, and no launcher has said which "
            "GPU is this rank's: it uses all GPUs of its machine. Call `easyddl.init()` first.",
            stacklevel=2,
        )


def _pin_gpu(local_rank):
    # Counted without JAX, which would take all of them to count them.
    gpus = _visible_gpus()
    if gpus == 0 or jax.config.read(_VISIBLE) != _ALL:
        return
    jax.config.update(_VISIBLE, str(local_rank % gpus))
    if launcher.local_size() > gpus:
        # Each would take three quarters of the memory of a GPU that it shares.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _visible_gpus():
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([each for each in named.split(",") if each.strip()])
    return len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))


def _share_cores():
    # XLA makes a pool of as many threads as NPROC says, or else one a core; whether it uses more
    # than one of them for an operation is told by one of its flags.
    if "NPROC" in os.environ or "xla_cpu_multi_thread_eigen" in os.environ.get("XLA_FLAGS", ""):
        return
    os.environ["NPROC"] = str(affinity.compute_threads())


def is_tensor(x):
    """Whether JAX or Keras made `x`."""
    return isinstance(x, jax.Array | JAXSparse | keras.Variable)


def is_symbolic(x):
    """Whether a tensor has no values yet, because a function is being traced."""
    return isinstance(x, jax.core.Tracer)


def infers_shapes(x):
    """Whether Keras traces a function for the shapes of its results alone."""
    return is_symbolic(x) and keras_scope.infers_shapes()


def is_float(x):
    """Whether a tensor or variable holds floating-point numbers."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def to_numpy(x):
    """The values of a tensor or variable."""
    x = x.value if isinstance(x, keras.Variable) else x
    if is_symbolic(x):
        raise TypeError(
            "`x` is a symbolic tensor: collectives take values, outside of jax.jit and jax.grad. "
            "In a custom training loop wrap the optimizer in `ddl.DistributedOptimizer`, whose "
            f"`stateless_apply` exchanges gradients inside of jax.jit too. Received: {x}"
        )
    return np.asarray(to_dense(x))


def from_numpy(array, like):
    """A tensor of the same dtype, where `like` is one too."""
    return jnp.array(array)


def is_variable(x):
    """JAX has no variables of its own."""
    return False


def assign(variable, value):
    """There are none to assign to."""
    raise NotImplementedError


def uncompiled(function, wholly=False):
    """The function itself: what is compiled is traced by calling it."""
    return function


class Exchange:
    """The way of a list of gradients into the engine and back, at every step.

    It is one custom call with all of them, inside a compiled step too: see `ext/xla_ffi.cpp`. XLA
    waits in none of its threads for it.

    Args:
        number: Integer. The engine's number of the exchange.
        buckets: List of lists of indices. Which gradients travel together, in which order.
        shapes: List of tuples. The shape of each gradient.
    """

    def __init__(self, number, buckets, shapes):
        self._number = number
        self._order = [i for bucket in buckets for i in bucket]

    def zeros(self, dtype, shape):
        """What a rank without a gradient takes part with."""
        return jnp.zeros(shape, dtype)

    def watch(self, variables, weight):
        """In a compiled step gradients set off when they are there in any case."""

    def unwatch(self):
        """There is nothing to end."""

    def stop(self):
        """Nothing sets off but by `reduce`."""

    def close(self):
        """JAX's arrays are its own."""

    def reduce(self, gradients, weight=None):
        """The mean of each gradient over all ranks, by weight; or what else the exchange makes."""
        arrays = [jnp.asarray(to_dense(gradients[i])) for i in self._order]
        weight = jnp.asarray(1.0 if weight is None else weight, jnp.float32)
        means = _primitive().bind(weight, *arrays, number=self._number)
        if not any(map(is_symbolic, means)):
            # In eager mode nothing else keeps the exchanges of one step before those of the next.
            jax.block_until_ready(means)
        result = dict(zip(self._order, means, strict=True))
        return [result[i] for i in range(len(gradients))]


def has_rows(gradient):
    """Whether a gradient holds rows that can travel alone: JAX's sparse ones are made dense."""
    return False


def to_dense(x):
    """A gradient, as a dense one if it is sparse."""
    return x.todense() if isinstance(x, JAXSparse) else x


@functools.cache
def _primitive():
    """The custom call as JAX's primitive, of a weight and arrays.

    It has an effect for XLA, which so neither drops nor moves nor doubles it, also where a rank
    uses no result. For JAX it has none, unlike `jax.ffi.ffi_call(has_side_effect=True)`: JAX
    forbids effects where gradients pass, and dispatches a step that has some in Python.
    """
    _register()
    primitive = Primitive(xla.CALL)
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda weight, *arrays, number: list(arrays))

    def lower(context, weight, *arrays, number):
        rule = jax.ffi.ffi_lowering(
            xla.CALL,
            has_side_effect=True,
            operand_output_aliases={i + 1: i for i in range(len(arrays))},
        )
        return rule(context, weight, *arrays, exchange=np.int64(number), first=np.int64(0))

    @functools.cache
    def compiled(number):
        return jax.jit(functools.partial(primitive.bind, number=number))

    mlir.register_lowering(primitive, lower)
    primitive.def_impl(lambda *arrays, number: compiled(number)(*arrays))
    return primitive


def _register():
    library = xla.library()
    handlers = {"cpu": library.easyddl_exchange, "CUDA": library.easyddl_exchange_on_gpu}
    for platform, handler in handlers.items():
        jax.ffi.register_ffi_target(xla.CALL, jax.ffi.pycapsule(handler), platform=platform)


def differentiable(forward, backward):
    """A function of a tensor, with a function of the upstream gradient that makes its own.

    Not by `jax.custom_gradient`, which would trace `backward` before the loss is there.
    """
    function = jax.custom_vjp(forward)
    function.defvjp(lambda x: (forward(x), None), lambda _, upstream: (backward(upstream),))
    return function


def check_model(model):
    """Raises an error if the model's step cannot exchange gradients."""
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "keras.distribution shares a step out to several devices, and easyddl to several "
            "ranks of one device each. Leave keras.distribution.set_distribution out. "
            f"Received: model {model.name!r} in {keras.distribution.distribution()}"
        )
    if getattr(keras.config, "is_nnx_enabled", lambda: False)():
        raise NotImplementedError(
            "easyddl does not know the variables of Flax's NNX. Leave KERAS_NNX_ENABLED out. "
            f"Received: model {model.name!r}"
        )
    if world.size() > 1 and jax.default_backend() not in ("cpu", "gpu"):
        raise NotImplementedError(
            "easyddl exchanges JAX's gradients on CPUs and NVIDIA GPUs. Set JAX_PLATFORMS to cpu "
            f"or cuda. Received: model {model.name!r} on {jax.default_backend()!r}"
        )


def once_there_is_a_batch():
    """Keras draws the batch before it calls the step."""
    return contextlib.nullcontext()


def outside_of_step():
    """A context in which variables have values, or `None`: in a pure function they have none."""
    return None if keras_scope.is_stateless() else contextlib.nullcontext()


def unless(condition, act):
    """Calls `act`, which changes nothing where `condition` holds."""
    act()  # XLA makes it a part of the update, where a branch would keep the two apart


class _Scope:
    """Stands for a function that is being traced."""


_scopes = weakref.WeakKeyDictionary()  # by JAX's traces
_kept = []


def scope_of(x):
    """What tensors can be used together: those of the function whose tracing has made `x`.

    What is registered for it is needed for as long as the compiled function lives, which JAX does
    not tell: so it is kept.
    """
    if not is_symbolic(x):
        return None
    if x._trace not in _scopes:
        _scopes[x._trace] = _Scope()
        _kept.append(_scopes[x._trace])
    return _scopes[x._trace]


def is_current(x):
    """Whether a tensor noted earlier can be used where the code is now."""
    from jax._src import core

    return not is_symbolic(x) or x._trace is core.trace_ctx.trace


def random_state():
    """`None`: Keras's layers draw by seeds of their own."""
    return None


def set_random_state(captured):
    """Nothing is captured."""


def op_seeds():
    """`None`: operations have no seeds of their own."""
    return None


def set_op_seeds(seeds):
    """There are none to set."""


def random_state_of_another_rank(captured, distance):
    """Nothing is captured."""
    return None
