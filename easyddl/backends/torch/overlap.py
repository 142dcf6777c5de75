"""Buckets of gradients that leave while PyTorch's backward pass computes the next ones."""

import collections
import os
import weakref

import torch

from easyddl.backends.torch import rehearsal
from easyddl.runtime import context

_VARIABLE = "EASYDDL_OVERLAP"

ADVICE = (
    f"Set the environment variable {_VARIABLE}=0: gradients then leave when the optimizer is "
    "called, and not before."
)

# By the identity of a parameter: which one sends its gradient ahead, and so holds the parameter.
_watching = weakref.WeakValueDictionary()


def is_wanted():
    """Whether gradients may leave ahead: what the environment says.

    Raises:
        ValueError: If it is neither 0 nor 1.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(f"{_VARIABLE} must be 0 or 1. Received: {text!r}")
    return text != "0"


class Overlap:
    """Sends buckets ahead, as soon as the backward pass has left all of their gradients.

    A step may do more than one backward pass before an optimizer takes the gradients, change
    them, or hand others to it. So it watches first. Once all that happened between two calls of the
    optimizer, one in each step, is that some parameters got a gradient each, once, and that the
    optimizer was given these very gradients, it takes that for what every step does. Where a
    later step does otherwise with a gradient that has left, that is an error; with one that has
    not, it watches again.

    Args:
        buckets: List of lists of indices.
        parameters: List of `torch.nn.Parameter`.
        lane: `HostLane` or `GpuLane`, which buckets are handed in by.
        weight: Function without arguments: what this rank's batch counts for, as the lane weighs.
    """

    def __init__(self, buckets, parameters, lane, weight):
        self._buckets = buckets
        self._bucket_of = {i: number for number, bucket in enumerate(buckets) for i in bucket}
        self._parameters = parameters
        self._lane = lane
        self._weight = weight
        self._is_on = False
        self._is_stopped = False
        self._step = None  # of the fit, in which the optimizer was called last
        self._begin_step()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(i))
            for i, parameter in enumerate(parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]

    @classmethod
    def of(cls, buckets, parameters, lane, weight):
        """A new one; `None` where nothing can be sent ahead."""
        devices = {parameter.device for parameter in parameters}
        if not is_wanted() or devices != {lane.device}:
            return None
        others = {id(o): o for o in (_watching.get(id(p)) for p in parameters) if o is not None}
        for other in others.values():
            # Of two that send one gradient, one would send what the other has made of it.
            other.stop()
        if others:
            return None
        made = cls(buckets, parameters, lane, weight)
        _watching.update((id(parameter), made) for parameter in parameters)
        return made

    def _begin_step(self):
        self._passes = collections.Counter()  # in which a parameter got a gradient, by index
        self._left_by_backward = {}  # the gradient's memory and version then
        self._gone = set()  # buckets
        self._weight_then = None  # when the first gradient was there

    def _hook(self, i):
        own = weakref.ref(self)

        @torch.compiler.disable
        def arrived(parameter):
            overlap = own()
            # What a rehearsal computes goes nowhere.
            if overlap is not None and not rehearsal.is_under_way():
                overlap._arrive(i, parameter.grad)

        return arrived

    def _arrive(self, i, gradient):
        number = self._bucket_of[i]
        if number in self._gone:
            raise RuntimeError(
                "A second backward pass adds to a gradient that has been sent to the other ranks "
                "already, since the optimizer took it after one pass in the steps before. "
                f"{ADVICE} Received: another gradient of shape {tuple(gradient.shape)}"
            )
        self._lane.arrive()
        self._passes[i] += 1
        self._left_by_backward[i] = _trace(gradient)
        if self._weight_then is None:
            self._weight_then = self._weight()
        if self._passes[i] > 1:
            self._is_on = False
        if self._is_on and all(self._passes[j] == 1 for j in self._buckets[number]):
            gradients = {j: self._parameters[j].grad for j in self._buckets[number]}
            self._gone.update(self._lane.depart(number, gradients, self._weight_then))

    def end_step(self, gradients, weight):
        """Called with what the optimizer was given, before the rest is handed in.

        Raises:
            RuntimeError: If that is not what has been sent ahead.
        """
        is_once_a_step = self._is_once_a_step()
        clean = is_once_a_step and _is_same_weight(weight, self._weight_then)
        for i in self._passes:
            is_same = self._passes[i] == 1 and _trace(gradients[i]) == self._left_by_backward[i]
            if not is_same and self._bucket_of[i] in self._gone:
                raise RuntimeError(
                    "The optimizer was given another gradient than the one that the backward pass "
                    "has left, which has been sent to the other ranks already: it was changed, "
                    "or replaced, after the backward pass, which it was not in the steps before. "
                    f"{ADVICE} Received: a gradient of shape {tuple(gradients[i].shape)}"
                )
            clean = clean and is_same
        if self._gone and not _is_same_weight(weight, self._weight_then):
            raise RuntimeError(
                f"The batch counted for {self._weight_then} when the backward pass began, and for "
                f"{weight} when the optimizer was called, after gradients had been sent to the "
                f"other ranks. {ADVICE}"
            )
        self._is_on = clean and not self._is_stopped
        self._begin_step()

    def _is_once_a_step(self):
        """Whether the optimizer is called once in each step of a fit, as far as is known.

        Between two calls within one step there may be one backward pass, and others after.
        """
        join = context.join()
        before, self._step = self._step, None if join is None else join.steps
        return join is None or (before is not None and self._step == before + 1)

    def stop(self):
        """Sends nothing ahead any more."""
        self._is_on, self._is_stopped = False, True
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self._parameters:
            if _watching.get(id(parameter)) is self:
                del _watching[id(parameter)]


def _is_same_weight(weight, other):
    # Without a look at the values of tensors on a GPU, for which this would have to wait.
    if isinstance(weight, torch.Tensor) or isinstance(other, torch.Tensor):
        return weight is other
    return weight == other


def _trace(gradient):
    """What tells whether a gradient is the same, and unchanged."""
    if gradient.layout != torch.strided:
        return object()  # a sparse one, which travels as another one: never the same
    return gradient.data_ptr(), gradient.shape, gradient.stride(), gradient._version
