"""Random numbers on JAX, which has no generators. Keras's layers have their own seeds."""

from easyddl.backends.base import Backend


class JaxRandomStates(Backend):
    """Random numbers of a `JaxBackend`: there is nothing to capture."""
