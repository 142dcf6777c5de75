"""Merges the metrics of an evaluation over all ranks.

Most metrics are the same whether all ranks evaluate the same data or each its own shard: their
results are quotients. Counts are not. Those of the same data count once.
"""

import keras

from easyddl.collectives import differences
from easyddl.data import split_calls, summary
from easyddl.runtime import notices, world
from easyddl.steps import context
from easyddl.training import metrics
from easyddl.training.fit_context import FitContext

VALIDATIONS = ("same", "split")

_VALIDATION = differences.Subject(
    "All ranks must pass the same `validation` to DDLCallback.", is_error=True
)


def shared_logs(model, logs, data=(), validation=None):
    """Returns the logs of an evaluation of all ranks. Collective: see `metrics.shared_logs`.

    Args:
        model: A compiled Keras model.
        logs: Dict that this rank's last step returned; empty if this rank evaluates nothing.
        data: Tuple of what this rank evaluates: arrays, or a dataset.
        validation: `"same"` if all ranks evaluate the same data, `"split"` if each evaluates its
            shard, or `None`: the ranks compare the contents of arrays.

    Raises:
        ValueError: On all ranks, if they pass different values of `validation`.
    """
    has_samples = bool(logs)
    counts = metrics.counts_of(model)
    if counts:
        is_compared = has_samples and validation is None
        leaves = keras.tree.flatten(data)
        summaries = split_calls.unsplit_summaries(leaves) if is_compared else {}
        by_rank = differences.gather(
            {
                "validation": validation,
                "has_samples": has_samples,
                "summaries": summaries,
                "is_shard": not is_compared or _is_shard(model, leaves, summaries),
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


def _is_shard(model, leaves, summaries):
    """Returns whether this rank is known to evaluate its own shard."""
    fit = context.of(model, FitContext)
    arguments = {} if fit is None else fit.arguments
    is_held_out = arguments.get("validation_split") and arguments.get("validation_data") is None
    return (
        bool(is_held_out)
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
