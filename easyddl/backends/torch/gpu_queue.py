"""The submit queue of tensors in a GPU's memory."""

import contextlib
import weakref

import torch

from easyddl.backends.torch.overlap import ADVICE
from easyddl.backends.torch.submit_queue import SubmitQueue
from easyddl.backends.torch.tensor_buffer import TensorBuffer

# Queues of steps whose backward pass has begun and whose `reduce` has not been called.
_in_backward = weakref.WeakSet()


class GpuQueue(SubmitQueue):
    """Queues buckets on CUDA streams, which wait for the results.

    If NCCL alone reduces a bucket, the host waits only for a small allreduce, by which it learns
    that all ranks have begun the step. If a bucket also passes through the hosts' memory,
    submitting it blocks until the hosts have reduced it. Then no bucket is submitted during the
    backward pass, which would be blocked too.

    A bucket that is submitted during the backward pass is queued on a separate stream, so that the
    stream that computes continues. The computing stream waits for the separate stream once all
    buckets have been submitted.
    """

    def __init__(self, engine, buckets, device):
        super().__init__(engine, buckets, device)
        self._stream = None  # the separate stream for early buckets
        self._last_stream = None  # the stream on which the last bucket was submitted
        self._meets_others = False  # whether another queue is used during the backward pass

    def forget(self):
        _in_backward.discard(self)
        self._computing = []  # streams on which gradients were computed
        self._ready = {}  # gradients, by bucket that has not been submitted
        self._ahead = 0  # how many of the first buckets were submitted before `reduce`
        self._buffers = {}  # of submitted buckets, by index

    @staticmethod
    def weigh(weight):
        """Returns the weight as a number, or as a tensor on the GPU, which needs no waiting."""
        if isinstance(weight, torch.Tensor) and weight.is_cuda:
            return weight
        return SubmitQueue.weigh(weight)

    def mark_ready(self):
        _in_backward.add(self)
        stream = torch.cuda.current_stream(self.device)
        if stream not in self._computing:
            self._computing.append(stream)

    def submit(self, bucket, gradients, weight):
        submitted = []
        # Otherwise submitting a bucket would block the backward pass.
        if self._meets_others or not self._engine.only_queues_on_gpu:
            return submitted
        self._ready[bucket] = gradients
        # Submit in order: a stream that waits for a bucket would never reach an earlier one.
        while self._ahead in self._ready:
            gradients = self._ready.pop(self._ahead)
            # If a gradient must be copied, it is copied on the separate stream too.
            with torch.cuda.stream(self._separate_stream()):
                buffers = {
                    i: TensorBuffer(each, True, self.device) for i, each in gradients.items()
                }
                self._submit_buckets(self._ahead, buffers, weight)
            submitted.append(self._ahead)
            self._ahead += 1
        return submitted

    def _separate_stream(self):
        """Returns the stream for early buckets, which waits for the work queued so far."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        for stream in self._computing:
            self._stream.wait_stream(stream)
        return self._stream

    def reduce(self, buffer_of, weight):
        _in_backward.discard(self)
        _stop_early_buckets(_in_backward)
        rest = self._buckets[self._ahead :]
        if rest:
            buffers = {i: buffer_of(i) for bucket in rest for i in bucket}
            self._submit_buckets(self._ahead, buffers, weight)
        if self._ahead > 0:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        results = {i: buffer.result() for i, buffer in self._buffers.items()}
        self.forget()
        return results

    def _submit_buckets(self, first, buffers, weight):
        """Submits buckets on the current stream, which waits for the results."""
        on_gpu = isinstance(weight, torch.Tensor)
        if on_gpu:
            weight = weight.detach().to(self.device, torch.float32).contiguous()
        self._last_stream = torch.cuda.current_stream(self.device)
        self._engine.submit_on_gpu(
            first,
            [buffer.address for buffer in buffers.values()],
            1.0 if on_gpu else weight,
            weight.data_ptr() if on_gpu else 0,
            self._last_stream.cuda_stream,
            keep=[*buffers.values(), weight],
        )
        self._buffers.update(buffers)

    def stop(self):
        # All ranks have submitted the same buckets. Closing the reducer would make unfinished ones
        # fail. An error of the GPU is raised where a result is used.
        with contextlib.suppress(RuntimeError):
            if self._last_stream is not None:
                self._last_stream.synchronize()
        self._last_stream = None


def _stop_early_buckets(queues):
    """Stops early submission in queues whose backward pass overlaps with another queue's use.

    All queues share one NCCL communicator, whose collectives must be queued in the same order on
    all ranks. So no other collective may be queued between the buckets of one step: a rank that
    has joined queues the whole step at once, and the backward pass may compute the gradients of
    two queues in a different order on each rank.

    Raises:
        RuntimeError: If one of the queues has submitted buckets in this backward pass.
    """
    for queue in queues:
        queue._meets_others = True
        if queue._ahead > 0:
            raise RuntimeError(
                "Something else is reduced during a backward pass whose gradients have already "
                "been sent to the other ranks, for example the sums of a normalization or the "
                f"gradients of another optimizer. In earlier steps this was not so. {ADVICE}"
            )
