"""Random numbers on JAX: it has no generators, and Keras's layers draw by seeds of their own."""

from easyddl.backends.base import Backend


class JaxRandomStates(Backend):
    """Random numbers of a `JaxBackend`: there is nothing to capture."""
