"""The lane of PyTorch's tensors that travel from a GPU's memory."""

import contextlib
import weakref

import torch

from easyddl.backends.torch.overlap import ADVICE
from easyddl.backends.torch.parcel import Parcel
from easyddl.runtime import world

# Lanes in whose step the backward pass has begun.
_in_backward = weakref.WeakSet()


class GpuLane:
    """Queues buckets on streams, which wait for the results.

    By NCCL nothing on the host waits but for the other ranks to begin the step, which a small
    allreduce tells. Where the hosts have a part in a bucket's way, handing it in takes until what
    they do is done: nothing leaves ahead there, since the backward pass would stand still for it.

    A bucket that leaves during the backward pass has its result waited for by a stream of its
    own, so that the stream that computes goes on. That one waits for it once all have left.

    Args:
        number: Integer. The engine's number of the exchange.
        buckets: List of lists of indices. Which tensors travel together, in which order.
        device: `torch.device`. The GPU.
    """

    def __init__(self, number, buckets, device):
        self.device = device
        self._number = number
        self._buckets = buckets
        self._stream = None  # the one beside those that compute
        self._last = None  # the one that waits for what was handed in last
        self._meets_others = False
        self._begin_step()

    def _begin_step(self):
        _in_backward.discard(self)
        self._computing = []  # streams that have left gradients
        self._ready = {}  # by bucket that has not gone: its gradients
        self._ahead = 0  # how many of the first buckets have gone
        self._parcels = {}  # those that are under way, by index

    @staticmethod
    def weigh(weight):
        """A weight as the engine takes it: a number, or a tensor that nobody waits for here."""
        if isinstance(weight, torch.Tensor) and weight.is_cuda:
            return weight
        return 1.0 if weight is None else float(weight)

    def arrive(self):
        """Called where the backward pass has queued a gradient: notes on which stream."""
        _in_backward.add(self)
        stream = torch.cuda.current_stream(self.device)
        if stream not in self._computing:
            self._computing.append(stream)

    def depart(self, number, gradients, weight):
        """Queues a bucket during the backward pass, and what waits for it.

        A stream that waits for a bucket never comes to one before it, so they go in their order.

        Args:
            number: Integer. The bucket.
            gradients: Dictionary of the step's own, by index.
            weight: What the batch counts for, from `weigh`.

        Returns:
            List of the buckets that have gone. It may be empty: then this one goes later.
        """
        gone = []
        if self._meets_others or not world.engine().core.only_queues_on_gpu(self._number):
            return gone
        self._ready[number] = gradients
        while self._ahead in self._ready:
            gradients = self._ready.pop(self._ahead)
            # What must be copied first is copied there too, after all that left gradients.
            with torch.cuda.stream(self._beside()):
                parcels = {i: Parcel(each, True, self.device) for i, each in gradients.items()}
                self._hand_in(self._ahead, parcels, weight)
            gone.append(self._ahead)
            self._ahead += 1
        return gone

    def _beside(self):
        """The stream beside those that compute, which waits for what these have queued so far."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        for stream in self._computing:
            self._stream.wait_stream(stream)
        return self._stream

    def reduce(self, parcel_of, weight):
        """Queues what has not left, and returns all that comes back, by index.

        Args:
            parcel_of: Function of an index that makes its parcel.
            weight: What the batch counts for, from `weigh`.

        Raises:
            RuntimeError: If another exchange has sent gradients ahead, for the first time here.
        """
        _in_backward.discard(self)
        self._meet(_in_backward)
        rest = self._buckets[self._ahead :]
        if rest:
            self._hand_in(self._ahead, {i: parcel_of(i) for b in rest for i in b}, weight)
        if self._ahead > 0:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        results = {i: parcel.result() for i, parcel in self._parcels.items()}
        self._begin_step()
        return results

    @staticmethod
    def _meet(lanes):
        # All exchanges share NCCL's communicator, whose collectives must be queued in one order on
        # all ranks. Between the buckets of one step there are none of another exchange's: a rank
        # that has joined queues the whole step at once, and nothing promises that the backward pass
        # leaves the gradients of two in one order everywhere.
        for lane in lanes:
            lane._meets_others = True
            if lane._ahead > 0:
                raise RuntimeError(
                    "Something else is exchanged during a backward pass whose gradients have been "
                    "sent to the other ranks already, which it was not in the steps before: a "
                    f"normalization's sums, for example, or another optimizer's gradients. {ADVICE}"
                )

    def _hand_in(self, first, parcels, weight):
        """Hands in buckets on the stream that is current, which waits for the results."""
        on_gpu = isinstance(weight, torch.Tensor)
        if on_gpu:
            weight = weight.detach().to(self.device, torch.float32).contiguous()
        self._last = torch.cuda.current_stream(self.device)
        world.engine().core.submit_on_gpu(
            self._number,
            first,
            [parcel.address for parcel in parcels.values()],
            1.0 if on_gpu else weight,
            weight.data_ptr() if on_gpu else 0,
            self._last.cuda_stream,
            keep=[*parcels.values(), weight],
        )
        self._parcels.update(parcels)

    def stop(self):
        """Called before the engine ends its part, which would fail what is under way."""
        # As on the host: what has gone here has gone elsewhere too. An error of the GPU's has been
        # told, or will be, where something is asked of it.
        with contextlib.suppress(RuntimeError):
            if self._last is not None:
                self._last.synchronize()
        self._last = None

    def close(self):
        """Called when the engine's part has ended."""
        self._begin_step()
