"""Overlap of communication and computation: submits buckets during PyTorch's backward pass."""

import collections
import os
import weakref

import torch

from easyddl.backends.torch import dry_run, private
from easyddl.runtime import settled_errors
from easyddl.steps import context

_VARIABLE = "EASYDDL_OVERLAP"

ADVICE = (
    f"Set the environment variable {_VARIABLE}=0: gradients are then submitted when the optimizer "
    "is called, not before."
)

# By the id of a parameter: the `Overlap` that submits its gradient. It keeps the parameter alive.
_watching = weakref.WeakValueDictionary()


def is_wanted():
    """Returns whether the environment allows submitting gradients during the backward pass.

    Raises:
        ValueError: If the variable is neither 0 nor 1.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(f"{_VARIABLE} must be 0 or 1. Received: {text!r}")
    return text != "0"


class Overlap:
    """Submits each bucket as soon as the backward pass has computed all of its gradients.

    A step may do several backward passes before it calls the optimizer, change the gradients, or
    pass other gradients to the optimizer. So this class first observes a step. Submitting early is
    safe if the optimizer is called once a step, each parameter got at most one gradient between two
    calls, and the optimizer received exactly these gradients. Later steps are assumed to do the
    same. If a later step differs, this is an error if the gradient has already been submitted.
    Otherwise the class observes again.

    The last bucket also holds flags, which say which gradients exist. It is submitted after all
    others, when all gradients exist.

    Args:
        buckets: List of lists of indices. An index beyond the parameters is that of the flags.
        parameters: List of `torch.nn.Parameter`.
        queue: `SubmitQueue` of the buckets.
        weight: Function without arguments that returns the weight of this rank's batch, from
            `queue.weigh`.
        flags: Function of a tensor that returns the flags; `None` if they are known only when the
            optimizer is called: see `Submitter.watch`.
    """

    def __init__(self, buckets, parameters, queue, weight, flags=None):
        self._buckets = buckets
        self._bucket_of = {i: number for number, bucket in enumerate(buckets) for i in bucket}
        self._parameters = parameters
        self._gradients_of = [[i for i in each if i < len(parameters)] for each in buckets]
        self._queue = queue
        self._weight = weight
        self._flags = flags
        self._is_on = False
        self._step = None  # of the fit, when the optimizer was called last
        self._start_step()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(i))
            for i, parameter in enumerate(parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]

    @classmethod
    def of(cls, buckets, parameters, queue, weight, flags=None):
        """Returns a new `Overlap`; `None` if these gradients cannot be submitted early."""
        devices = {parameter.device for parameter in parameters}
        if not is_wanted() or devices != {queue.device}:
            return None
        others = {id(o): o for o in (_watching.get(id(p)) for p in parameters) if o is not None}
        for other in others.values():
            # If two of them submitted one gradient, the second would submit the first one's result.
            other.stop()
        if others:
            return None
        made = cls(buckets, parameters, queue, weight, flags)
        _watching.update((id(parameter), made) for parameter in parameters)
        return made

    def _start_step(self):
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
                settled_errors.call(overlap._mark_ready, overlap._give_up, i, parameter.grad)

        return after_accumulation

    def _mark_ready(self, i, gradient):
        number = self._bucket_of[i]
        if number in self._submitted:
            raise RuntimeError(
                "A second backward pass adds to a gradient that has already been sent to the other "
                "ranks. In earlier steps the optimizer was called after one backward pass. "
                f"{ADVICE} Received: another gradient of shape {tuple(gradient.shape)}"
            )
        self._queue.mark_ready()
        self._passes[i] += 1
        self._identities[i] = _identity_of(gradient)
        if self._first_weight is None:
            self._first_weight = self._weight()
        if self._passes[i] > 1:
            self._is_on = False
        last = len(self._buckets) - 1
        if self._is_on:
            self._submit_if_ready(number)
            if number != last and len(self._submitted) == last:
                self._submit_if_ready(last)

    def _submit_if_ready(self, number):
        """Submits a bucket if the backward pass has computed all of its gradients."""
        of_gradients = self._gradients_of[number]
        if number in self._submitted or not all(self._passes[j] == 1 for j in of_gradients):
            return
        tensors = {j: self._parameters[j].grad for j in of_gradients}
        for j in self._buckets[number][len(of_gradients) :]:  # the flags
            if self._flags is None or len(self._submitted) < len(self._buckets) - 1:
                return
            # The result overwrites what is submitted.
            tensors[j] = self._flags(self._parameters[0]).clone()
        self._submitted.update(self._queue.submit(number, tensors, self._first_weight))

    def end_step(self, gradients, weight):
        """Checks the gradients that the optimizer received, before other buckets are submitted.

        Args:
            gradients: List of tensors. The gradients that the optimizer received.
            weight: The weight of this rank's batch now.

        Raises:
            RuntimeError: If a gradient or the weight differs from what has been submitted.
        """
        is_once_a_step = self._is_once_a_step()
        is_safe = is_once_a_step and _is_same_weight(weight, self._first_weight)
        for i in self._passes:
            is_same = self._passes[i] == 1 and _identity_of(gradients[i]) == self._identities[i]
            if not is_same and self._bucket_of[i] in self._submitted:
                raise RuntimeError(
                    "A gradient was changed or replaced after the backward pass, but it had "
                    "already been sent to the other ranks. In earlier steps it was not changed. "
                    f"{ADVICE} Received: a gradient of shape {tuple(gradients[i].shape)}"
                )
            is_safe = is_safe and is_same
        if self._submitted and not _is_same_weight(weight, self._first_weight):
            raise RuntimeError(
                "The weight of this rank's batch changed after gradients had been sent to the "
                f"other ranks. {ADVICE} Received: weight {self._first_weight} when the backward "
                f"pass began, and {weight} when the optimizer was called"
            )
        self._is_on = is_safe and bool(self._hooks)  # `stop` has removed them
        self._start_step()

    def _is_once_a_step(self):
        """Returns whether the optimizer is called once in each step of a fit, as far as is known.

        If it is called twice in a step, there may be one backward pass between these calls, and
        several after the second call.
        """
        join = context.join()
        before, self._step = self._step, None if join is None else join.steps
        return join is None or (before is not None and self._step == before + 1)

    def _give_up(self, error):
        self._queue.give_up(error)
        self.forget()

    def forget(self):
        """Discards the record of an aborted step, and observes the next step."""
        self._is_on = False
        self._start_step()

    def stop(self):
        """Stops submitting gradients, and removes the hooks from the parameters."""
        self._is_on = False
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
    """Returns a value that stays equal for a gradient until it is changed or replaced."""
    if gradient.layout != torch.strided:
        return object()  # a sparse gradient is submitted as a copy, so it is never the same
    return (
        gradient.data_ptr(),
        gradient.shape,
        gradient.stride(),
        private.version_of(gradient),
    )
