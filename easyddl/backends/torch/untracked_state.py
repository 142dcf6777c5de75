"""The buffers of PyTorch's modules. Keras tracks only their parameters."""

import weakref

import keras
import torch

from easyddl.backends.base import Backend
from easyddl.backends.torch import private
from easyddl.backends.untracked_state import UntrackedState, variable_of

# These have the buffers `running_mean`, `running_var` and `num_batches_tracked`.
_NORMALIZATIONS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    torch.nn.InstanceNorm1d,
    torch.nn.InstanceNorm2d,
    torch.nn.InstanceNorm3d,
)

# Other dtypes, such as quantized ones, have no equivalent in NumPy.
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128),
)


class TorchUntrackedState(Backend):
    """The untracked state of a `TorchBackend`."""

    def untracked_state(self, layer):
        state = UntrackedState()
        for path, module in _own_modules(layer, layer.name):
            for name, tensor in module.named_buffers(recurse=False):
                if tensor.layout == torch.strided and tensor.dtype in _DTYPES:
                    group = _group_of(state, module, name, tensor)
                    full_name = f"{path}.{name}"
                    group.append(variable_of(module, name, Buffer, self, module, name, full_name))
        return state


class Buffer:
    """A buffer of a module, with the interface of a Keras variable.

    A module may replace the tensor, so the buffer is looked up by its name.

    Args:
        backend: `TorchBackend`.
        module: `torch.nn.Module` that has the buffer.
        name: String. The name of the buffer in the module.
        path: String. The name of the buffer in messages.
    """

    def __init__(self, backend, module, name, path):
        self._backend = backend
        self._module = weakref.ref(module)
        self.name = name
        self.path = path

    @property
    def value(self):
        """The tensor."""
        return getattr(self._module(), self.name)

    @property
    def shape(self):
        return tuple(self.value.shape)

    @property
    def dtype(self):
        return str(self.value.dtype).removeprefix("torch.")

    def numpy(self):
        return self._backend.to_numpy(self.value)

    def assign(self, value):
        """Assigns an array or a tensor. If the shape differs, it becomes the module's tensor."""
        if not isinstance(value, torch.Tensor):
            value = self._backend.from_numpy(value, self.value)
        with torch.no_grad():
            if value.shape == self.value.shape:
                self.value.copy_(value)
            else:
                setattr(self._module(), self.name, value.to(self.value))


def _own_modules(module, path):
    """Returns (path, module) pairs: a layer, and its modules that belong to no inner layer."""
    found = [(path, module)]
    for name, child in module.named_children():
        if not isinstance(child, keras.Layer):
            found += _own_modules(child, f"{path}.{name}")
    return found


def _group_of(state, module, name, tensor):
    """Returns the list of an `UntrackedState` that a buffer belongs to."""
    if not private.is_persistent(module, name):
        return state.caches
    if not isinstance(module, _NORMALIZATIONS):
        return state.others
    if name in ("running_mean", "running_var") and tensor.is_floating_point():
        return state.statistics
    return state.counters if name == "num_batches_tracked" else state.others
