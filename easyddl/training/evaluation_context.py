"""What belongs to one call of `model.evaluate()`, and ends with it."""

import contextlib

_under_way = []


class Evaluation:
    """One call of `model.evaluate()`.

    Attributes:
        model: The model that is evaluated.
        is_shared: Boolean. Whether all ranks' metrics become one: it has a `DDLCallback`, its
            own or that of the fit that it validates.
        at_end: `contextlib.ExitStack` of what to undo when it ends, in whatever way.
    """

    def __init__(self, model):
        self.model = model
        self.is_shared = False
        self.at_end = contextlib.ExitStack()


def current(model):
    """The innermost evaluation of `model` that is under way, or `None`."""
    for evaluation in reversed(_under_way):
        if evaluation.model is model:
            return evaluation
    return None


@contextlib.contextmanager
def under_way(model):
    """Around one call of `model.evaluate()`."""
    evaluation = Evaluation(model)
    _under_way.append(evaluation)
    try:
        with evaluation.at_end:
            yield
    finally:
        _under_way.remove(evaluation)
