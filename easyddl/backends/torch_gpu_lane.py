"""The lane of PyTorch's tensors that travel from a GPU's memory."""

import weakref

import torch

from easyddl import world
from easyddl.backends.torch_parcel import Parcel

# Lanes in whose step the backward pass has begun.
_in_backward = weakref.WeakSet()


class GpuLane:
    """Queues buckets on streams, which wait for the results: nothing on the host does.

    A bucket that leaves during the backward pass has its result waited for by a stream of its
    own, so that the stream that computes goes on. That one waits for it once all have left.

    Args:
        number: Integer. The engine's number of the exchange.
        buckets: List of lists of indices. Which tensors travel together, in which order.
    """

    on_gpu = True

    def __init__(self, number, buckets):
        self._number = number
        self._buckets = buckets
        self._stream = None  # the one beside those that compute
        self._computing = []  # those that have left gradients since a bucket has gone
        self._ready = {}  # by bucket that has not gone: its gradients
        self._ahead = 0  # how many of the first buckets have gone
        self._results = {}  # the parcels of these, by index
        self._meets_others = False

    @staticmethod
    def weigh(weight):
        """A weight as the engine takes it: a number, or a tensor that nobody waits for here."""
        if isinstance(weight, torch.Tensor) and weight.is_cuda:
            return weight
        return 1.0 if weight is None else float(weight)

    def arrive(self):
        """Called where the backward pass has queued a gradient: notes on which stream."""
        _in_backward.add(self)
        stream = torch.cuda.current_stream()
        if stream not in self._computing:
            self._computing.append(stream)

    def depart(self, number, gradients, weight):
        """Queues a bucket during the backward pass, and what waits for it.

        A stream that waits for a bucket never comes to one before it, so they go in their order.

        Args:
            number: Integer. The bucket.
            gradients: Dictionary of the step's own, by index.
            weight: What the batch counts for, from `weigh`.
        """
        if self._meets_others:
            return
        self._ready[number] = gradients
        while self._ahead in self._ready:
            parcels = {
                i: Parcel(each, in_place=True, on_gpu=True)
                for i, each in self._ready.pop(self._ahead).items()
            }
            self._hand_in(self._ahead, parcels, weight, self._beside())
            self._ahead += 1

    def _beside(self):
        """The stream beside those that compute, which waits for what these have queued so far."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        for stream in self._computing:
            self._stream.wait_stream(stream)
        return self._stream

    def reduce(self, parcel_of, weight):
        """Queues what has not left, and returns all that comes back, by index.

        Args:
            parcel_of: Function of an index that makes its parcel.
            weight: What the batch counts for, from `weigh`.
        """
        _in_backward.discard(self)
        # What goes another way half-way through the backward pass, as a normalization's sums do,
        # has a communicator of its own. Kernels of two that wait on a GPU at once, begun in another
        # order on each rank, can wait for each other for ever: see "Using multiple NCCL
        # communicators concurrently" in NCCL's user guide.
        for lane in _in_backward:
            lane._meets_others = True
        current = torch.cuda.current_stream()
        rest = self._buckets[self._ahead :]
        if rest:
            parcels = {i: parcel_of(i) for bucket in rest for i in bucket}
            self._hand_in(self._ahead, parcels, weight, current)
        if self._ahead > 0:
            current.wait_stream(self._stream)
        results = {i: parcel.result() for i, parcel in self._results.items()}
        self.close()
        return results

    def _hand_in(self, first, parcels, weight, stream):
        is_number = not isinstance(weight, torch.Tensor)
        if not is_number:
            with torch.cuda.stream(stream):
                weight = weight.detach().to(torch.float32).contiguous()
        world.engine().core.submit_on_gpu(
            self._number,
            first,
            [parcel.address for parcel in parcels.values()],
            weight if is_number else 1.0,
            0 if is_number else weight.data_ptr(),
            stream.cuda_stream,
            keep=[*parcels.values(), weight],
        )
        self._results.update(parcels)

    def stop(self):
        """Called before the engine ends its part."""
        # As on the host: what has gone here has gone elsewhere too.
        if self._ahead > 0:
            self._stream.synchronize()

    def close(self):
        """Begins anew."""
        _in_backward.discard(self)
        self._computing, self._ready, self._results, self._ahead = [], {}, {}, 0
