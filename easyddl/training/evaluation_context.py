"""The context of one call of `model.evaluate()`."""

from easyddl.runtime import context


class EvaluationContext(context.Context):
    """One call of `model.evaluate()`.

    Attributes:
        is_shared: Boolean. Whether the metrics of all ranks are merged. They are if the evaluation
            has a `DDLCallback`: its own, or that of the fit that it belongs to.
    """

    def __init__(self, model):
        super().__init__(model)
        self.is_shared = False


def current(model):
    """Returns the innermost active evaluation of `model`; `None` if there is none."""
    return context.of(model, EvaluationContext)
