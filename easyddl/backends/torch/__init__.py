"""Keras on PyTorch."""

from easyddl.backends.torch.devices import TorchDevices
from easyddl.backends.torch.random_states import TorchRandomStates
from easyddl.backends.torch.step import TorchStep
from easyddl.backends.torch.submitter import TorchReduction
from easyddl.backends.torch.tensors import TorchTensors
from easyddl.backends.torch.trainer import TorchTrainer


class TorchBackend(
    TorchDevices, TorchTensors, TorchStep, TorchTrainer, TorchRandomStates, TorchReduction
):
    """See `Backend`."""
