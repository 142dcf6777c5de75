"""A step that a rank takes to register what it exchanges, and of which nothing remains."""

import contextlib

import torch

_active = []


def is_active():
    """Whether the step that is being taken is a dry run: it exchanges nothing."""
    return bool(_active)


@contextlib.contextmanager
def dry_run(model, preserved):
    """A context for such a step, after which variables and buffers hold what they held before.

    Args:
        model: A Keras model.
        preserved: `training.dry_run.PreservedState`: its variables, and its random numbers.
    """
    values = [(each.value, each.value.detach().clone()) for each in preserved.variables]
    values += [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with preserved.random_numbers():
        _active.append(model)
        try:
            yield
        finally:
            _active.remove(model)
            model.zero_grad()
            model.reset_metrics()  # some of which the step has built
            with torch.no_grad():
                for tensor, value in values:
                    tensor.copy_(value)
