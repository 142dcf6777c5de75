"""PyTorch's tensors, which also serve as variables."""

import keras
import ml_dtypes
import numpy as np
import torch

from easyddl.backends.base import Backend


def to_dense(gradient):
    """Returns a gradient as a dense tensor."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


class TorchTensors(Backend):
    """Tensors of a `TorchBackend`."""

    to_dense = staticmethod(to_dense)

    def is_tensor(self, x):
        return isinstance(x, torch.Tensor | keras.Variable)

    def is_symbolic(self, x):
        return isinstance(x, torch.Tensor) and x.is_meta

    def infers_shapes(self, x):
        return self.is_symbolic(x)  # only Keras's shape inference uses meta tensors

    def to_numpy(self, x):
        if self.is_symbolic(_tensor(x)):
            raise TypeError(
                "`x` is a symbolic tensor, with which Keras infers shapes, but collectives take "
                f"values. Call them outside of layers. Received: {x}"
            )
        x = _tensor(x).detach().cpu().resolve_conj().resolve_neg()
        if x.dtype == torch.bfloat16:  # NumPy itself has no bfloat16
            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()

    def from_numpy(self, array, like):
        if array.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        return tensor.to(_tensor(like).device)

    def is_plain_variable(self, x):
        return isinstance(x, torch.Tensor)

    def assign(self, variable, value):
        with torch.no_grad():
            variable.copy_(self.from_numpy(np.array(value), variable))


def _tensor(x):
    return x.value if isinstance(x, keras.Variable) else x
