"""Where Keras traces: pure functions, and functions that only infer shapes."""

from easyddl.compat.names import Name

_STATELESS = Name(
    "keras.src.backend.common.stateless_scope",
    "get_stateless_scope",
    "on JAX an optimizer that a step uses first does not get the root's variables",
)
_SYMBOLIC = Name(
    "keras.src.backend.common.symbolic_scope",
    "in_symbolic_scope",
    "on JAX SyncBatchNormalization exchanges moments while Keras only infers shapes",
)

NAMES = (_STATELESS, _SYMBOLIC)


def is_stateless():
    """Whether this is within a pure function, in which variables have no values of their own."""
    return _STATELESS.get()() is not None


def infers_shapes():
    """Whether Keras traces a function for the shapes of its results alone."""
    return _SYMBOLIC.get()()
