"""A training step on PyTorch, whose operations run eagerly."""

import functools

import keras
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from easyddl.backends.base import Backend


class TorchStep(Backend):
    """The training step of a `TorchBackend`."""

    def is_eager(self):
        return True

    def uncompiled(self, function, wholly=False):
        return torch.compiler.disable(function, recursive=wholly)

    def on_native_update(self, act):
        def after_step(optimizer, args, kwargs):
            act([each.grad for group in optimizer.param_groups for each in group["params"]])

        register_optimizer_step_post_hook(after_step)

    def differentiable(self, forward, backward):
        @keras.ops.custom_gradient
        def function(x):
            def gradient(*arguments, upstream=None):
                if upstream is None:
                    (upstream,) = arguments
                return backward(upstream)

            return forward(x), gradient

        return function

    def changing(self, train_step, model, begin):
        @functools.wraps(train_step)
        def step(data):
            changed, change = begin()
            before = [variable.value.detach().clone() for variable in changed]
            result = train_step(data)
            if changed:
                with torch.no_grad():
                    after = [variable.value.detach() for variable in changed]
                    for variable, value in zip(changed, change(before, after), strict=True):
                        variable.assign(value)
            return result

        return step
