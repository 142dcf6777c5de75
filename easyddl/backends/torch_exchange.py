"""The way of PyTorch's tensors into the engine and back."""

import contextlib
import math
import warnings

import keras
import torch

from easyddl import world
from easyddl.backends import torch_rehearsal
from easyddl.backends.torch_overlap import Overlap


class Exchange:
    """The way of a list of gradients into the engine and back, at every step.

    `reduce` hands in all of them at once and waits. Where they are the `.grad` of parameters that
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
        self._overlap = None
        self._under_way = {}  # by bucket: its ticket, and its parcels, whose memory the engine uses
        self._ahead = 0  # how many of the first buckets are under way before `reduce` was called
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
        self._overlap = Overlap.of(
            self._buckets, self._parameters, self._depart, lambda: as_number(weight())
        )

    def reduce(self, gradients, weight=None):
        """The mean of each gradient over all ranks, by weight; or what else the exchange makes."""
        if torch_rehearsal.is_under_way():
            return [gradient.detach().clone() for gradient in gradients]
        gradients = [self._dense(gradient) for gradient in gradients]
        if all(gradient.is_cuda for gradient in gradients):
            return self._reduce_on_gpu(gradients, weight)
        weight = as_number(weight)
        if self._overlap is not None:
            self._overlap.end_step(gradients, weight)
        self._ahead = 0
        if not self._under_way:
            # At once: each of several would wake the engine's thread.
            self._hand_in(range(len(self._buckets)), gradients, weight)
        for number in range(len(self._buckets)):
            if number not in self._under_way:
                self._hand_in([number], gradients, weight)
        return self._wait(len(gradients))

    def _reduce_on_gpu(self, gradients, weight):
        """The same, queued on the stream that computes the gradients: nothing here waits."""
        order = [i for bucket in self._buckets for i in bucket]
        parcels = {i: self._parcel(i, gradients[i], on_gpu=True) for i in order}
        on_gpu = isinstance(weight, torch.Tensor) and weight.is_cuda
        if on_gpu:  # nobody waits for it here
            weight = weight.detach().to(torch.float32).contiguous()
        world.engine().core.submit_on_gpu(
            self._number,
            0,
            [parcel.address for parcel in parcels.values()],
            1.0 if on_gpu else as_number(weight),
            weight.data_ptr() if on_gpu else 0,
            torch.cuda.current_stream(gradients[0].device).cuda_stream,
            keep=[*parcels.values(), weight],
        )
        return [parcels[i].result().reshape(shape) for i, shape in enumerate(self._shapes)]

    def _depart(self, number, weight):
        """Hands in a bucket whose gradients are there."""
        gradients = {i: self._parameters[i].grad for i in self._buckets[number]}
        self._hand_in([number], gradients, weight)
        while self._ahead in self._under_way:
            self._ahead += 1

    def _hand_in(self, numbers, gradients, weight):
        indices = [i for number in numbers for i in self._buckets[number]]
        parcels = {i: self._parcel(i, gradients[i]) for i in indices}
        ticket = world.engine().core.submit(
            self._number, numbers[0], [parcel.address for parcel in parcels.values()], weight
        )
        for number in numbers:
            self._under_way[number] = ticket, {i: parcels[i] for i in self._buckets[number]}

    def _parcel(self, i, gradient, on_gpu=False):
        parameter = self._parameters[i]
        # What backward has left in a parameter is the step's own. Others may be needed by whoever
        # computed them, or be one tensor several times.
        own = parameter is not None and is_same(gradient, parameter.grad)
        return _Parcel(gradient, own, on_gpu)

    def _wait(self, count):
        for ticket, _ in self._under_way.values():
            ticket.wait()
        results = [None] * count
        for _, parcels in self._under_way.values():
            for i, parcel in parcels.items():
                results[i] = parcel.result().reshape(self._shapes[i])
        self._under_way.clear()
        return results

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
        return gradient.to_dense()

    def stop(self):
        """Nothing leaves any more, except by `reduce`."""
        if self._overlap is not None:
            self._overlap.stop()
        # A step that has failed on all ranks has sent the same ahead on each. Some of it may have
        # begun here, and not elsewhere: then they all must go on with it.
        with contextlib.suppress(RuntimeError):
            for number in range(self._ahead):
                self._under_way[number][0].wait()

    def close(self):
        """Called when the engine's part has ended, and uses no memory of this one's any more."""
        self._under_way.clear()


def as_number(weight):
    """A weight as the engine takes it."""
    return 1.0 if weight is None else float(weight)


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


class _Parcel:
    """A tensor on its way: where it is read, and where its result goes.

    Args:
        tensor: A dense tensor on any device.
        in_place: Boolean. Whether the result may take its place.
        on_gpu: Boolean. Whether it goes from there, and not by way of the host.
    """

    def __init__(self, tensor, in_place, on_gpu):
        tensor = tensor.detach()
        self._device = tensor.device
        if not on_gpu and tensor.device.type != "cpu":
            _tell_of_the_host(tensor.device.type)
        # A copy is ours, and so its result goes there.
        self._source = (tensor if on_gpu else tensor.cpu()).contiguous()
        is_copy = self._source.data_ptr() != tensor.data_ptr()
        self._target = self._source if in_place or is_copy else torch.empty_like(self._source)

    @property
    def address(self):
        """What the engine needs to know."""
        size = math.prod(self._source.shape) * self._source.element_size()
        return self._source.data_ptr(), self._target.data_ptr(), size

    def result(self):
        """What has come back, on the tensor's device."""
        return self._target.to(self._device)


_told = set()


def _tell_of_the_host(kind):
    if kind not in _told and world.is_root():
        _told.add(kind)
        warnings.warn(
            f"Gradients on {kind} devices are exchanged by way of the host's memory.",
            stacklevel=2,
        )
