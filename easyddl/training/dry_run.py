"""A step that a rank without batches takes to register what it exchanges."""

import contextlib

from easyddl.checkpoint import random_states
from easyddl.training import model_state


class Preserved:
    """What must be the same after a dry run of a model's step as it was before.

    Args:
        model: A built Keras model in training.
    """

    def __init__(self, model):
        self._model = model

    @property
    def variables(self):
        """The variables of the model, its optimizers and its metrics, each once."""
        model = self._model
        found = {id(v): v for v in (*model.variables, *model_state.all_variables(model))}
        found.update({id(v): v for metric in model.metrics for v in metric.variables})
        return list(found.values())

    @contextlib.contextmanager
    def random_numbers(self):
        """A context after which this rank draws the same random numbers as it would have before."""
        captured = random_states.capture(self._model)
        try:
            yield
        finally:
            random_states.restore(self._model, captured)
