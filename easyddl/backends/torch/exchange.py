"""The way of PyTorch's tensors into the engine and back."""

import warnings

import keras
import torch

from easyddl.backends.torch import rehearsal
from easyddl.backends.torch.gpu_lane import GpuLane
from easyddl.backends.torch.host_lane import HostLane
from easyddl.backends.torch.overlap import Overlap
from easyddl.backends.torch.parcel import Parcel
from easyddl.runtime import world


class Exchange:
    """The way of a list of gradients into the engine and back, at every step.

    `reduce` hands in all of them at once. Where they are the `.grad` of parameters that
    have been told by `watch`, buckets may have left before, while the backward pass was under
    way: see `Overlap`.

    Args:
        number: Integer. The engine's number of the exchange.
        buckets: List of lists of indices. Which gradients travel together, in which order.
        shapes: List of tuples. The shape of each gradient.
    """

    def __init__(self, number, buckets, shapes):
        self._number = number
        self._buckets = buckets
        self._shapes = shapes
        self._parameters = [None] * len(shapes)
        self._lane = None
        self._overlap = None
        self._has_told_of_sparse = False

    def zeros(self, dtype, shape):
        """What a rank without a gradient takes part with."""
        return keras.ops.zeros(shape, dtype)

    def watch(self, variables, weight):
        """Has gradients leave as soon as the backward pass has computed them, where that is safe.

        Args:
            variables: List of the variables that the gradients belong to.
            weight: Function without arguments: what this rank's batch counts for.
        """
        self._parameters = [variable.value for variable in variables]
        lane = self._lane_of(self._parameters)
        self._overlap = Overlap.of(
            self._buckets, self._parameters, lane, lambda: lane.weigh(weight())
        )

    def reduce(self, gradients, weight=None):
        """The mean of each gradient over all ranks, by weight; or what else the exchange makes."""
        if rehearsal.is_under_way():
            return [gradient.detach().clone() for gradient in gradients]
        gradients = [self._dense(gradient) for gradient in gradients]
        lane = self._lane_of(gradients)
        weight = lane.weigh(weight)
        if self._overlap is not None:
            self._overlap.end_step(gradients, weight)
        results = lane.reduce(lambda i: self._parcel(i, gradients[i], lane), weight)
        return [results[i].reshape(shape) for i, shape in enumerate(self._shapes)]

    def _lane_of(self, tensors):
        """The lane of all steps: where the first tensors lie, the others do."""
        if self._lane is None:
            if all(tensor.is_cuda for tensor in tensors):
                self._lane = GpuLane(self._number, self._buckets, tensors[0].device)
            else:
                self._lane = HostLane(self._number, self._buckets)
        return self._lane

    def _parcel(self, i, gradient, lane):
        parameter = self._parameters[i]
        # What backward has left in a parameter is the step's own. Others may be needed by whoever
        # computed them, or be one tensor several times.
        own = parameter is not None and is_same(gradient, parameter.grad)
        return Parcel(gradient, own, lane.device)

    def _dense(self, gradient):
        if gradient.layout == torch.strided:
            return gradient
        if world.is_root() and not self._has_told_of_sparse:
            self._has_told_of_sparse = True
            warnings.warn(
                f"A gradient of shape {tuple(gradient.shape)} is sparse, as that of a "
                "torch.nn.Embedding(sparse=True) is. It is exchanged as a dense one: all of its "
                "rows travel.",
                stacklevel=2,
            )
        return to_dense(gradient)

    def unwatch(self):
        """Has nothing leave any more, except by `reduce`."""
        if self._overlap is not None:
            self._overlap.stop()
            self._overlap = None

    def stop(self):
        """Called before the engine's part ends."""
        self.unwatch()
        if self._lane is not None:
            self._lane.stop()

    def close(self):
        """Called when the engine's part has ended, and uses no memory of this one's any more."""
        if self._lane is not None:
            self._lane.close()


def has_rows(gradient):
    """Whether a gradient holds rows that can travel alone: PyTorch's are made dense."""
    return False


def to_dense(gradient):
    """A gradient, as a dense one if it is sparse."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def is_same(tensor, other):
    """Whether two are one and the same memory."""
    return (
        other is not None
        and other.layout == torch.strided
        and tensor.data_ptr() == other.data_ptr()
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.dtype == other.dtype
    )
