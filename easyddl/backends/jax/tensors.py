"""JAX's arrays. JAX itself has no variables."""

import jax
import keras
import numpy as np
from jax import numpy as jnp
from jax.experimental.sparse import JAXSparse

from easyddl.backends.base import Backend
from easyddl.compat import keras_scope


def is_symbolic(x):
    """Returns whether a tensor has no values yet, because a function is being traced."""
    return isinstance(x, jax.core.Tracer)


def to_dense(x):
    """Returns an array as a dense array."""
    return x.todense() if isinstance(x, JAXSparse) else x


class JaxTensors(Backend):
    """Tensors of a `JaxBackend`."""

    is_symbolic = staticmethod(is_symbolic)
    to_dense = staticmethod(to_dense)

    def is_tensor(self, x):
        return isinstance(x, jax.Array | JAXSparse | keras.Variable)

    def infers_shapes(self, x):
        # Keras traces a function to infer the shapes of its results.
        return is_symbolic(x) and keras_scope.infers_shapes()

    def to_numpy(self, x):
        x = x.value if isinstance(x, keras.Variable) else x
        if is_symbolic(x):
            raise TypeError(
                "`x` is a symbolic tensor, but collectives take values, outside of jax.jit and "
                "jax.grad. In a custom training loop wrap the optimizer in "
                "`ddl.DistributedOptimizer`, whose `stateless_apply` reduces gradients inside "
                f"of jax.jit too. Received: {x}"
            )
        return np.asarray(to_dense(x))

    def from_numpy(self, array, like):
        return jnp.array(array)

    def is_lost(self, variable):
        try:
            value = variable.value
            if isinstance(value, jax.Array) and not is_symbolic(value):
                value.block_until_ready()
        except TypeError:
            return True  # Keras has taken the value out, and there is no initializer any more
        except RuntimeError:
            return True  # the array was given to a step, or it is the result of one that failed
        return False
