"""Keras on JAX."""

from easyddl.backends.jax.devices import JaxDevices
from easyddl.backends.jax.step import JaxStep
from easyddl.backends.jax.submitter import JaxSubmitter
from easyddl.backends.jax.tensors import JaxTensors
from easyddl.backends.jax.trainer import JaxStepMeter, JaxTrainer


class JaxBackend(JaxDevices, JaxTensors, JaxStep, JaxTrainer):
    """Keras on JAX, which has no random generators. Keras's layers have their own."""

    framework = "JAX"
    submitter = JaxSubmitter
    step_meter = JaxStepMeter
