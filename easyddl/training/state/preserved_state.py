"""The state that a dry run must preserve.

In a dry run, a rank without batches runs a step only to register the step's collectives.
"""

import contextlib

from easyddl.checkpoint import saved_random_states
from easyddl.training.state import model_state


class PreservedState:
    """The variables and random numbers that a dry run of a model's step must not change.

    Args:
        model: A built Keras model in training.
    """

    def __init__(self, model):
        self._model = model

    @property
    def variables(self):
        """The state of the model, its optimizers and its metrics, without duplicates."""
        model = self._model
        found = {id(v): v for v in (*model.variables, *model_state.all_variables(model))}
        found.update({id(v): v for metric in model.metrics for v in metric.variables})
        return list(found.values())

    @property
    def caches(self):
        """What the model's modules compute from their configuration and do not save."""
        return model_state.caches(self._model)

    @contextlib.contextmanager
    def random_numbers(self):
        """Returns a context that restores the states of all random generators at its end."""
        captured = saved_random_states.capture(self._model)
        try:
            yield
        finally:
            saved_random_states.restore(self._model, captured)
