"""The submit queue of tensors in the host's memory."""

import contextlib

import torch

from easyddl.backends.torch.submit_queue import SubmitQueue
from easyddl.backends.torch.tensor_buffer import TensorBuffer


class HostQueue(SubmitQueue):
    """Submits buckets to the engine's thread, and waits for its work handles."""

    def __init__(self, engine, buckets):
        super().__init__(engine, buckets, torch.device("cpu"))

    def forget(self):
        self._pending = {}  # by bucket: its work handle and its buffers, which the engine uses
        self._ahead = 0  # how many of the first buckets were submitted before `reduce`

    def submit(self, bucket, gradients, weight):
        buffers = {i: TensorBuffer(each, True, self.device) for i, each in gradients.items()}
        self._submit_buckets([bucket], buffers, weight)
        while self._ahead in self._pending:
            self._ahead += 1
        return [bucket]

    def reduce(self, buffer_of, weight):
        missing = [n for n in range(len(self._buckets)) if n not in self._pending]
        # If none has been submitted, submit all at once: each request wakes the engine's thread.
        for numbers in [[n] for n in missing] if self._pending else [missing]:
            buffers = {i: buffer_of(i) for n in numbers for i in self._buckets[n]}
            self._submit_buckets(numbers, buffers, weight)
        for work, _ in self._pending.values():
            work.wait()
        done = [each for _, buffers in self._pending.values() for each in buffers.items()]
        self.forget()
        return {i: buffer.result() for i, buffer in done}

    def _submit_buckets(self, numbers, buffers, weight):
        addresses = [buffer.address for buffer in buffers.values()]
        # The engine keeps the buffers alive until it is done, because a wait may be interrupted.
        work = self._engine.submit(numbers[0], addresses, weight, buffers)
        for number in numbers:
            self._pending[number] = work, {i: buffers[i] for i in self._buckets[number]}

    def stop(self):
        # After a step that failed on all ranks, each rank has submitted the same first buckets.
        # Some ranks may have begun to reduce them, so all ranks must finish them.
        with contextlib.suppress(RuntimeError):
            for number in range(self._ahead):
                self._pending[number][0].wait()
