"""One call of `model.evaluate()`, and its metrics over all ranks.

Most metrics are the same whether all ranks evaluate the same data or each its own shard: their
results are quotients. Counts are not. Those of the same data count once.
"""

import keras

from easyddl.collectives import differences
from easyddl.data import split_calls, summary
from easyddl.runtime import notices, world
from easyddl.steps import context
from easyddl.training.metrics import metrics

VALIDATIONS = ("same", "split")

_VALIDATION = differences.Subject(
    "All ranks must pass the same `validation` to DDLCallback.", is_error=True
)


class EvaluationContext(context.Context):
    """One call of `model.evaluate()`.

    Args:
        model: A Keras model.
        data: Tuple of the arguments `x`, `y` and `sample_weight` of `evaluate`.
        validation: The argument of the `DDLCallback`.

    Attributes:
        data: The argument.
        is_shared: Boolean. Whether the metrics of all ranks are merged. They are if the evaluation
            has a `DDLCallback`: its own, or that of the fit that it belongs to.
        validation: The argument of that `DDLCallback`.
        is_held_out: Boolean. Whether the data are a part of this rank's own training data.
    """

    called = "model.evaluate()"

    def __init__(self, model, data=(), validation=None):
        super().__init__(model)
        self.data = data
        self.is_shared = False
        self.validation = validation
        self.is_held_out = False


def current(model):
    """Returns the innermost active evaluation of `model`; `None` if there is none."""
    return context.of(model, EvaluationContext)


def shared_logs(evaluation, logs):
    """Returns the logs of an evaluation of all ranks. Collective: see `metrics.shared_logs`.

    If all ranks evaluate the same data, counts count once. `validation` of the `DDLCallback` says
    it, or else the ranks compare the contents of arrays.

    Args:
        evaluation: `EvaluationContext`.
        logs: Dict that this rank's last step returned; empty if this rank evaluates nothing.

    Raises:
        ValueError: On all ranks, if they pass different values of `validation`.
    """
    model, validation = evaluation.model, evaluation.validation
    has_samples = bool(logs)
    counts = metrics.counts_of(model)
    if counts:
        is_compared = has_samples and validation is None
        leaves = keras.tree.flatten(evaluation.data)
        summaries = split_calls.unsplit_summaries(leaves) if is_compared else {}
        by_rank = differences.gather(
            {
                "validation": validation,
                "has_samples": has_samples,
                "summaries": summaries,
                "is_shard": not is_compared or _is_shard(evaluation, leaves, summaries),
            }
        )
        _VALIDATION.compare(by_rank["validation"])
        with_samples = [rank for rank, has in enumerate(by_rank["has_samples"]) if has]
        if validation == "same" or summary.are_equal(by_rank["summaries"]):
            first = next(iter(with_samples), 0)
            return metrics.shared_logs(model, logs, has_samples and world.rank() == first)
        if len(with_samples) > 1 and not all(by_rank["is_shard"]):
            _warn_of_counts(counts)
    return metrics.shared_logs(model, logs, has_samples)


def _is_shard(evaluation, leaves, summaries):
    """Returns whether this rank is known to evaluate its own shard."""
    return (
        evaluation.is_held_out
        or any(map(split_calls.is_result, leaves))
        or any(split_calls.is_length_of_result(each.shape[0]) for each in summaries.values())
    )


def _warn_of_counts(counts):
    names = ", ".join(sorted({each.name for each in counts}))
    notices.tell_once(
        "counts",
        f"warning: the metrics {names} of all ranks are added. If they are counts, and all ranks "
        'evaluate the same data, pass DDLCallback(validation="same"), so that they count once. If '
        'each evaluates its own shard, pass DDLCallback(validation="split").',
    )
