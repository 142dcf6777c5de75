"""Keras on TensorFlow."""

from easyddl.backends.tensorflow.devices import TensorFlowDevices
from easyddl.backends.tensorflow.random_states import TensorFlowRandomStates
from easyddl.backends.tensorflow.step import TensorFlowStep
from easyddl.backends.tensorflow.submitter import TensorFlowSubmitter
from easyddl.backends.tensorflow.tensors import TensorFlowTensors
from easyddl.backends.tensorflow.trainer import TensorFlowStepMeter, TensorFlowTrainer
from easyddl.backends.tensorflow.untracked_state import TensorFlowUntrackedState


class TensorFlowBackend(
    TensorFlowDevices,
    TensorFlowTensors,
    TensorFlowStep,
    TensorFlowUntrackedState,
    TensorFlowTrainer,
    TensorFlowRandomStates,
):
    """Keras on TensorFlow."""

    framework = "TensorFlow"
    submitter = TensorFlowSubmitter
    step_meter = TensorFlowStepMeter
