"""Keras on JAX."""

from easyddl.backends.jax.devices import JaxDevices
from easyddl.backends.jax.random_states import JaxRandomStates
from easyddl.backends.jax.step import JaxStep
from easyddl.backends.jax.submitter import JaxReduction
from easyddl.backends.jax.tensors import JaxTensors
from easyddl.backends.jax.trainer import JaxTrainer


class JaxBackend(JaxDevices, JaxTensors, JaxStep, JaxTrainer, JaxRandomStates, JaxReduction):
    """See `Backend`."""
