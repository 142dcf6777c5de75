"""The context of one call of `model.evaluate()`."""

from easyddl.steps import context


class EvaluationContext(context.Context):
    """One call of `model.evaluate()`.

    Args:
        model: A Keras model.
        data: Tuple of the arguments `x`, `y` and `sample_weight` of `evaluate`.

    Attributes:
        data: See above.
        is_shared: Boolean. Whether the metrics of all ranks are merged. They are if the evaluation
            has a `DDLCallback`: its own, or that of the fit that it belongs to.
        validation: The argument `validation` of that `DDLCallback`.
    """

    called = "model.evaluate()"

    def __init__(self, model, data=()):
        super().__init__(model)
        self.data = data
        self.is_shared = False
        self.validation = None


def current(model):
    """Returns the innermost active evaluation of `model`; `None` if there is none."""
    return context.of(model, EvaluationContext)
