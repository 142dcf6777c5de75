"""Submits JAX's arrays to the engine, and returns the results."""

import functools

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from easyddl.backends import xla
from easyddl.backends.jax import private
from easyddl.backends.jax.tensors import is_symbolic, to_dense
from easyddl.backends.submitter import Submitter


class JaxSubmitter(Submitter):
    """Submits all arrays by one custom call, which finds the engine's reducer by its number.

    The call can be a part of a compiled step: see `ext/bindings/xla_ffi.cpp`. It blocks none of
    XLA's threads.
    """

    def __init__(self, engine, buckets, shapes):
        super().__init__(engine, buckets, shapes)
        self._order = [i for bucket in buckets for i in bucket]

    def reduce(self, tensors, weight=None):
        arrays = [jnp.asarray(to_dense(tensors[i])) for i in self._order]
        weight = jnp.asarray(1.0 if weight is None else weight, jnp.float32)
        owner = self.owner and self.owner()
        means = _primitive().bind(weight, *arrays, number=self._engine.number, owner=owner)
        if not any(map(is_symbolic, means)):
            # In eager mode nothing else keeps the reductions of one step before those of the next.
            jax.block_until_ready(means)
        result = dict(zip(self._order, means, strict=True))
        return [result[i] for i in range(len(tensors))]


@functools.cache
def _primitive():
    """Returns the custom call as a JAX primitive that takes a weight and arrays.

    XLA sees it as an operation with a side effect, so it never removes, moves or duplicates the
    call, even on a rank that uses no result. JAX sees no effect, unlike with
    `jax.ffi.ffi_call(has_side_effect=True)`: JAX forbids effects in functions that it
    differentiates, and dispatches a step with effects from Python, which is slower.

    Its parameter `owner` is an object that a compiled function must keep: see `Submitter`. The
    function's jaxpr holds the parameter, and the executable holds it too.
    """
    _register()
    primitive = Primitive(xla.CALL)
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda weight, *arrays, number, owner: list(arrays))

    def lower(context, weight, *arrays, number, owner):
        private.keep_with_executable(context, owner)
        rule = jax.ffi.ffi_lowering(
            xla.CALL,
            has_side_effect=True,
            operand_output_aliases={i + 1: i for i in range(len(arrays))},
        )
        return rule(context, weight, *arrays, reducer=np.int64(number), first=np.int64(0))

    @functools.cache
    def compiled(number):
        return jax.jit(functools.partial(primitive.bind, number=number, owner=None))

    mlir.register_lowering(primitive, lower)
    primitive.def_impl(lambda *arrays, number, owner: compiled(number)(*arrays))
    return primitive


def _register():
    library = xla.library()
    handlers = {"cpu": library.easyddl_reduce, "CUDA": library.easyddl_reduce_on_gpu}
    for platform, handler in handlers.items():
        jax.ffi.register_ffi_target(xla.CALL, jax.ffi.pycapsule(handler), platform=platform)
