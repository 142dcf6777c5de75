"""The lane of PyTorch's tensors that travel from the host's memory."""

import contextlib

import torch

from easyddl.backends.torch.parcel import Parcel
from easyddl.runtime import world


class HostLane:
    """Hands in buckets by tickets, and waits for these.

    Args:
        number: Integer. The engine's number of the exchange.
        buckets: List of lists of indices. Which tensors travel together, in which order.
    """

    device = torch.device("cpu")

    def __init__(self, number, buckets):
        self._number = number
        self._buckets = buckets
        self._under_way = {}  # by bucket: its ticket, and its parcels, whose memory the engine uses
        self._ahead = 0  # how many of the first buckets are under way before `reduce` was called

    @staticmethod
    def weigh(weight):
        """A weight as the engine takes it."""
        return 1.0 if weight is None else float(weight)

    def arrive(self):
        """Called where the backward pass has left a gradient: it is there."""

    def depart(self, number, gradients, weight):
        """Hands in a bucket during the backward pass.

        Args:
            number: Integer. The bucket.
            gradients: Dictionary of the step's own, by index.
            weight: What the batch counts for, from `weigh`.

        Returns:
            List of the buckets that have gone: this one.
        """
        parcels = {i: Parcel(each, True, self.device) for i, each in gradients.items()}
        self._hand_in([number], parcels, weight)
        while self._ahead in self._under_way:
            self._ahead += 1
        return [number]

    def reduce(self, parcel_of, weight):
        """Hands in what has not left, and returns all that comes back, by index.

        Args:
            parcel_of: Function of an index that makes its parcel.
            weight: What the batch counts for, from `weigh`.
        """
        try:
            self._hand_in_rest(parcel_of, weight)
            for ticket, _ in self._under_way.values():
                ticket.wait()
        except BaseException as error:
            self._give_up(error)
            raise
        self._ahead = 0
        travelled = [each for _, parcels in self._under_way.values() for each in parcels.items()]
        self._under_way.clear()
        return {i: parcel.result() for i, parcel in travelled}

    def _hand_in_rest(self, parcel_of, weight):
        missing = [n for n in range(len(self._buckets)) if n not in self._under_way]
        # All at once, if none has left: each of several would wake the engine's thread.
        for numbers in [[n] for n in missing] if self._under_way else [missing]:
            parcels = {i: parcel_of(i) for n in numbers for i in self._buckets[n]}
            self._hand_in(numbers, parcels, weight)

    def _give_up(self, error):
        # The step has begun, and other ranks are in it: a script that catches the error must not
        # find this step's results in the next one. Without a part of it under way nothing is lost,
        # unless the error is this rank's alone: an interrupt, which may come at any point.
        if self._under_way or not isinstance(error, Exception):
            reason = f"A step's exchange was given up by a {type(error).__name__}"
            reason += f": {error}" if str(error) else "."
            world.engine().core.give_up(self._number, reason)
        self._under_way.clear()

    def _hand_in(self, numbers, parcels, weight):
        addresses = [parcel.address for parcel in parcels.values()]
        ticket = world.engine().core.submit(self._number, numbers[0], addresses, weight, parcels)
        for number in numbers:
            self._under_way[number] = ticket, {i: parcels[i] for i in self._buckets[number]}

    def stop(self):
        """Called before the engine ends its part."""
        # A step that has failed on all ranks has sent the same ahead on each. Some of it may have
        # begun here, and not elsewhere: then they all must go on with it.
        with contextlib.suppress(RuntimeError):
            for number in range(self._ahead):
                self._under_way[number][0].wait()

    def close(self):
        """Called when the engine's part has ended, and uses no memory of this one's any more."""
        self._under_way.clear()
