"""A step that a rank takes for what it exchanges, and of which nothing remains."""

import contextlib

import torch

_under_way = []


def is_under_way():
    """Whether the step that is taken is a rehearsal: what it exchanges stays here."""
    return bool(_under_way)


@contextlib.contextmanager
def rehearsal(model):
    """Around such a step: variables, buffers and random numbers become again what they were."""
    # Here, because these modules come to the doors themselves.
    from easyddl.checkpoint import random_states
    from easyddl.training import model_state

    held = {id(v): v for v in (*model.variables, *model_state.all_variables(model))}
    held.update({id(v): v for metric in model.metrics for v in metric.variables})
    values = [(variable.value, variable.value.detach().clone()) for variable in held.values()]
    values += [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    numbers = random_states.capture(model)
    _under_way.append(model)
    try:
        yield
    finally:
        _under_way.remove(model)
        model.zero_grad()
        model.reset_metrics()  # some of which it has built
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        random_states.restore(model, numbers)
