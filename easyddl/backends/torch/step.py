"""A training step on PyTorch, whose operations run eagerly."""

import contextlib
import functools

import keras
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from easyddl.backends.base import Backend
from easyddl.compat import patches


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

    @contextlib.contextmanager
    def noting_used_variables(self, note):
        backward = torch.Tensor.backward

        @functools.wraps(backward)
        def noting(loss, *args, **kwargs):
            for leaf in _leaves_of(loss.grad_fn):
                if isinstance(leaf, torch.nn.Parameter):
                    note(leaf)
            return backward(loss, *args, **kwargs)

        with patches.replaced(torch.Tensor, "backward", noting):
            yield

    def differentiable(self, forward, backward):
        @keras.ops.custom_gradient
        def function(x):
            def gradient(*arguments, upstream=None):
                if upstream is None:
                    (upstream,) = arguments
                return backward(upstream)

            return forward(x), gradient

        return function


def _leaves_of(node):
    """Yields the tensors for which the graph behind a node accumulates gradients."""
    nodes, seen = [node], {None}
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes.extend(inner for inner, _ in node.next_functions)
