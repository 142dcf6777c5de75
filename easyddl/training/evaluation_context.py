"""What belongs to one call of `model.evaluate()`, and ends with it."""

from easyddl.runtime import context


class EvaluationContext(context.Context):
    """One call of `model.evaluate()`.

    Attributes:
        is_shared: Boolean. Whether all ranks' metrics become one: it has a `DDLCallback`, its
            own or that of the fit that it validates.
    """

    def __init__(self, model):
        super().__init__(model)
        self.is_shared = False


def current(model):
    """The innermost active evaluation of `model`, or `None`."""
    return context.of(model, EvaluationContext)
