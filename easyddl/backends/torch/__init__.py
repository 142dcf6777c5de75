"""Keras on PyTorch."""

from easyddl.backends.torch.devices import TorchDevices
from easyddl.backends.torch.random_states import TorchRandomStates
from easyddl.backends.torch.step import TorchStep
from easyddl.backends.torch.submitter import TorchSubmitter
from easyddl.backends.torch.tensors import TorchTensors
from easyddl.backends.torch.trainer import TorchStepMeter, TorchTrainer
from easyddl.backends.torch.untracked_state import TorchUntrackedState


class TorchBackend(
    TorchDevices,
    TorchTensors,
    TorchStep,
    TorchUntrackedState,
    TorchTrainer,
    TorchRandomStates,
):
    """Keras on PyTorch."""

    framework = "PyTorch"
    submitter = TorchSubmitter
    step_meter = TorchStepMeter
