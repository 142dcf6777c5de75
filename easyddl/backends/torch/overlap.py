"""Overlap of communication and computation: buckets that leave during PyTorch's backward pass."""

import collections
import os
import weakref

import torch

from easyddl.backends.torch import dry_run, private
from easyddl.runtime import context

_VARIABLE = "EASYDDL_OVERLAP"

ADVICE = (
    f"Set the environment variable {_VARIABLE}=0: gradients then leave when the optimizer is "
    "called, and not before."
)

# By the id of a parameter: the `Overlap` that submits its gradient. It holds the parameter.
_watching = weakref.WeakValueDictionary()


def is_wanted():
    """Whether the environment allows that gradients leave during the backward pass.

    Raises:
        ValueError: If the variable is neither 0 nor 1.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(f"{_VARIABLE} must be 0 or 1. Received: {text!r}")
    return text != "0"


class Overlap:
    """Submits each bucket as soon as the backward pass has computed all of its gradients.

    A step may do several backward passes before an optimizer takes the gradients, change them, or
    give the optimizer others. So this class first observes a step. It is safe to submit early if
    between two calls of the optimizer, one in each step, some parameters got one gradient each, and
    the optimizer was given these very gradients. Later steps are taken to do the same. If one does
    not, that is an error for a gradient that has been submitted; otherwise it observes again.

    Args:
        buckets: List of lists of indices.
        parameters: List of `torch.nn.Parameter`.
        queue: `SubmitQueue` of the buckets.
        weight: Function without arguments: the weight of this rank's batch, from `queue.weigh`.
    """

    def __init__(self, buckets, parameters, queue, weight):
        self._buckets = buckets
        self._bucket_of = {i: number for number, bucket in enumerate(buckets) for i in bucket}
        self._parameters = parameters
        self._queue = queue
        self._weight = weight
        self._is_on = False
        self._is_stopped = False
        self._step = None  # of the fit, when the optimizer was called last
        self._begin_step()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(i))
            for i, parameter in enumerate(parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]

    @classmethod
    def of(cls, buckets, parameters, queue, weight):
        """A new `Overlap`; `None` if these gradients cannot be submitted early."""
        devices = {parameter.device for parameter in parameters}
        if not is_wanted() or devices != {queue.device}:
            return None
        others = {id(o): o for o in (_watching.get(id(p)) for p in parameters) if o is not None}
        for other in others.values():
            # If two submitted one gradient, one would submit what the other has made of it.
            other.stop()
        if others:
            return None
        made = cls(buckets, parameters, queue, weight)
        _watching.update((id(parameter), made) for parameter in parameters)
        return made

    def _begin_step(self):
        self._passes = collections.Counter()  # backward passes, by index of the gradient
        self._identities = {}  # of the gradients that backward has computed, by index
        self._submitted = set()  # buckets
        self._first_weight = None  # the weight when the first gradient was computed

    def _hook(self, i):
        own = weakref.ref(self)

        @torch.compiler.disable
        def after_accumulation(parameter):
            overlap = own()
            if overlap is not None and not dry_run.is_active():
                overlap._mark_ready(i, parameter.grad)

        return after_accumulation

    def _mark_ready(self, i, gradient):
        number = self._bucket_of[i]
        if number in self._submitted:
            raise RuntimeError(
                "A second backward pass adds to a gradient that has been sent to the other ranks "
                "already, since the optimizer took it after one pass in the steps before. "
                f"{ADVICE} Received: another gradient of shape {tuple(gradient.shape)}"
            )
        self._queue.mark_ready()
        self._passes[i] += 1
        self._identities[i] = _identity_of(gradient)
        if self._first_weight is None:
            self._first_weight = self._weight()
        if self._passes[i] > 1:
            self._is_on = False
        if self._is_on and all(self._passes[j] == 1 for j in self._buckets[number]):
            gradients = {j: self._parameters[j].grad for j in self._buckets[number]}
            self._submitted.update(self._queue.submit(number, gradients, self._first_weight))

    def end_step(self, gradients, weight):
        """Checks what the optimizer was given, before the other buckets are submitted.

        Args:
            gradients: List of tensors. What the optimizer was given.
            weight: The weight of this rank's batch now.

        Raises:
            RuntimeError: If that differs from what has been submitted.
        """
        is_once_a_step = self._is_once_a_step()
        is_safe = is_once_a_step and _is_same_weight(weight, self._first_weight)
        for i in self._passes:
            is_same = self._passes[i] == 1 and _identity_of(gradients[i]) == self._identities[i]
            if not is_same and self._bucket_of[i] in self._submitted:
                raise RuntimeError(
                    "The optimizer was given another gradient than the one that the backward pass "
                    "has left, which has been sent to the other ranks already: it was changed, "
                    "or replaced, after the backward pass, which it was not in the steps before. "
                    f"{ADVICE} Received: a gradient of shape {tuple(gradients[i].shape)}"
                )
            is_safe = is_safe and is_same
        if self._submitted and not _is_same_weight(weight, self._first_weight):
            raise RuntimeError(
                f"The batch counted for {self._first_weight} when the backward pass began, and for "
                f"{weight} when the optimizer was called, after gradients had been sent to the "
                f"other ranks. {ADVICE}"
            )
        self._is_on = is_safe and not self._is_stopped
        self._begin_step()

    def _is_once_a_step(self):
        """Whether the optimizer is called once in each step of a fit, as far as is known.

        Between two calls in one step there may be one backward pass, and more after the second.
        """
        join = context.join()
        before, self._step = self._step, None if join is None else join.steps
        return join is None or (before is not None and self._step == before + 1)

    def stop(self):
        """Submits nothing any more, and takes its hooks off the parameters."""
        self._is_on, self._is_stopped = False, True
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self._parameters:
            if _watching.get(id(parameter)) is self:
                del _watching[id(parameter)]


def _is_same_weight(weight, other):
    # Comparing the values of tensors on a GPU would wait for them.
    if isinstance(weight, torch.Tensor) or isinstance(other, torch.Tensor):
        return weight is other
    return weight == other


def _identity_of(gradient):
    """Equal for the same gradient, as long as nobody changes it."""
    if gradient.layout != torch.strided:
        return object()  # a sparse one is submitted as a copy: never the same
    return (
        gradient.data_ptr(),
        gradient.shape,
        gradient.stride(),
        private.version_of(gradient),
    )
