"""Submits PyTorch's tensors to the engine, and returns the results."""

import torch

from easyddl.backends.submitter import Submitter
from easyddl.backends.torch import dry_run
from easyddl.backends.torch.gpu_queue import GpuQueue
from easyddl.backends.torch.host_queue import HostQueue
from easyddl.backends.torch.overlap import Overlap
from easyddl.backends.torch.tensor_buffer import TensorBuffer
from easyddl.backends.torch.tensors import to_dense
from easyddl.runtime import notices


class TorchSubmitter(Submitter):
    """Submits tensors through a queue, for memory of the host or of a GPU.

    `reduce` submits all tensors at once. If `watch` was called, some buckets of gradients may
    already have been submitted during the backward pass: see `Overlap`.
    """

    def __init__(self, engine, buckets, shapes):
        super().__init__(engine, buckets, shapes)
        self._parameters = [None] * len(shapes)
        self._queue = None
        self._overlap = None

    def watch(self, variables, weight, flags=None):
        parameters = [variable.value for variable in variables]
        queue = self._queue_for(parameters)
        self._parameters = [*parameters, *[None] * (len(self._shapes) - len(parameters))]
        self._overlap = Overlap.of(
            self._buckets, parameters, queue, lambda: queue.weigh(weight()), flags
        )

    def reduce(self, tensors, weight=None):
        if dry_run.is_active():
            return [tensor.detach().clone() for tensor in tensors]
        tensors = [self._dense(tensor) for tensor in tensors]
        queue = self._queue_for(tensors)
        weight = queue.weigh(weight)
        if self._overlap is not None:
            self._overlap.end_step(tensors, weight)
        results = queue.reduce(lambda i: self._buffer(i, tensors[i]), weight)
        return [results[i].reshape(shape) for i, shape in enumerate(self._shapes)]

    def _dense(self, gradient):
        if gradient.layout == torch.strided:
            return gradient
        notices.warn_once(
            ("sparse gradient", self._engine.number),
            f"A gradient of shape {tuple(gradient.shape)} is sparse, as that of a "
            "torch.nn.Embedding(sparse=True) is. It is reduced as a dense gradient, with all rows.",
        )
        return to_dense(gradient)

    def _queue_for(self, tensors):
        """Returns the queue, which serves all steps: later tensors are on the same device."""
        if self._queue is None:
            if all(tensor.is_cuda for tensor in tensors):
                self._queue = GpuQueue(self._engine, self._buckets, tensors[0].device)
            else:
                self._queue = HostQueue(self._engine, self._buckets)
        return self._queue

    def _buffer(self, i, tensor):
        parameter = self._parameters[i]
        # The result may overwrite the gradient that the backward pass left in a parameter. Other
        # tensors may still be needed by the user's code, or occur several times in the list.
        in_place = parameter is not None and _is_same(tensor, parameter.grad)
        return TensorBuffer(tensor, in_place, self._queue.device)

    def unwatch(self):
        if self._overlap is not None:
            self._overlap.stop()
            self._overlap = None

    def forget(self):
        if self._overlap is not None:
            self._overlap.forget()
        if self._queue is not None:
            self._queue.forget()

    def stop(self):
        self.unwatch()
        if self._queue is not None:
            self._queue.stop()


def _is_same(tensor, other):
    """Returns whether two tensors are the same view of the same memory."""
    return (
        other is not None
        and other.layout == torch.strided
        and tensor.data_ptr() == other.data_ptr()
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.dtype == other.dtype
    )
