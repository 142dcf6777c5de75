"""A step that a rank without batches runs only to register the step's collectives."""

import contextlib

import torch

from easyddl.steps import context


class _DryRun(context.Scope):
    """A dry run that is active."""


def is_active():
    """Returns whether the current step is a dry run, in which no gradient is reduced."""
    return bool(context.active(_DryRun))


@contextlib.contextmanager
def dry_run(model, preserved):
    """Restores the variables, buffers and random numbers of a model after a dry run.

    Args:
        model: A Keras model.
        preserved: `PreservedState` of the model.
    """
    values = [(each, each.value.detach().clone()) for each in preserved.variables]
    # Keep the tensors of caches, not their names: if the step replaces a cache by a larger one,
    # the larger one must stay, because the module relies on its size.
    caches = [(each.value, each.value.detach().clone()) for each in preserved.caches]
    with preserved.random_numbers():
        try:
            with _DryRun():
                yield
        finally:
            model.zero_grad()
            model.reset_metrics()  # the step may have built some of them
            with torch.no_grad():
                for variable, value in values:
                    variable.assign(value)
                for tensor, value in caches:
                    tensor.copy_(value)
