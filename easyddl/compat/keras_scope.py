"""The scopes in which Keras traces functions: stateless scopes, and shape inference."""

from easyddl.compat.names import Name

_STATELESS = Name(
    "keras.src.backend.common.stateless_scope",
    "get_stateless_scope",
    "on JAX an optimizer that a step uses for the first time does not get the root's variables",
)
_SYMBOLIC = Name(
    "keras.src.backend.common.symbolic_scope",
    "in_symbolic_scope",
    "on JAX SyncBatchNormalization reduces moments while Keras only infers shapes",
)

NAMES = (_STATELESS, _SYMBOLIC)


def is_stateless():
    """Returns whether the code runs in a stateless scope, where variables have no values."""
    return _STATELESS.get()() is not None


def infers_shapes():
    """Returns whether Keras traces a function only to infer the shapes of its results."""
    return _SYMBOLIC.get()()
