"""A training step on PyTorch, whose operations run eagerly."""

import keras
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from easyddl.backends.base import Backend
from easyddl.compat import user_code


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

    def has_fixed_shape(self, function, arguments):
        shapes = keras.tree.map_structure(lambda x: x.detach().to("meta"), arguments)
        with user_code.suppress(), torch.no_grad(), keras.device("meta"):
            function(*shapes)
            return True
        return False  # it needs values

    def has_gradient(self, loss):
        return getattr(loss, "requires_grad", False) or not torch.is_grad_enabled()

    def differentiable(self, forward, backward):
        @keras.ops.custom_gradient
        def function(x):
            def gradient(*arguments, upstream=None):
                if upstream is None:
                    (upstream,) = arguments
                return backward(upstream)

            return forward(x), gradient

        return function
