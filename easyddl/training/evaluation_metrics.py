"""Merges the metrics of an evaluation over all ranks.

Most metrics are the same whether all ranks evaluate the same data or each its own shard: their
results are quotients. Counts are not. Those of the same data count once.
"""

import dataclasses

import keras

from easyddl.collectives import objects
from easyddl.data import split_calls, summary
from easyddl.runtime import notices, settled_errors, world
from easyddl.steps import context
from easyddl.training import comparison, metrics
from easyddl.training.fit_context import FitContext

VALIDATIONS = ("same", "split")


@dataclasses.dataclass
class _Evaluated:
    """What one rank evaluates.

    Attributes:
        validation: The argument of `DDLCallback`.
        has_samples: Boolean.
        summaries: Dict of `summary.Summary`; empty if the ranks need not or cannot compare.
        may_be_same: Boolean. Whether this rank cannot see that it evaluates a shard.
    """

    validation: str | None
    has_samples: bool
    summaries: dict
    may_be_same: bool


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
        mine = _evaluated(model, has_samples, data, validation)
        by_rank = objects.allgather_object(mine)
        _require_equal([each.validation for each in by_rank])
        if validation == "same" or summary.are_equal([each.summaries for each in by_rank]):
            first = next((rank for rank, each in enumerate(by_rank) if each.has_samples), 0)
            return metrics.shared_logs(model, logs, has_samples and world.rank() == first)
        several = sum(each.has_samples for each in by_rank) > 1
        if several and any(each.may_be_same for each in by_rank):
            _warn_of_counts(counts)
    return metrics.shared_logs(model, logs, has_samples)


def _evaluated(model, has_samples, data, validation):
    if validation is not None or not has_samples:
        return _Evaluated(validation, has_samples, {}, False)
    summaries = comparison.unsplit_summaries(data)
    lengths = [each.shape[0] for each in summaries.values()]
    is_split = (
        any(map(split_calls.is_result, keras.tree.flatten(data)))
        or any(map(split_calls.is_length_of_result, lengths))
        or _is_held_out(model)
    )
    return _Evaluated(validation, has_samples, summaries, not is_split)


def _is_held_out(model):
    """Returns whether `validation_split` has taken the samples from this rank's shard."""
    fit = context.of(model, FitContext)
    arguments = {} if fit is None else fit.arguments
    return bool(arguments.get("validation_split")) and arguments.get("validation_data") is None


def _require_equal(validations):
    if len(set(validations)) > 1:
        raise settled_errors.settled(
            ValueError(
                "All ranks must pass the same `validation` to DDLCallback. Received, by rank: "
                f"{validations}"
            )
        )


def _warn_of_counts(counts):
    names = ", ".join(sorted({each.name for each in counts}))
    notices.tell_once(
        "counts",
        f"warning: the metrics {names} of all ranks are added. If they are counts, and all ranks "
        'evaluate the same data, pass DDLCallback(validation="same"), so that they count once. If '
        'each evaluates its own shard, pass DDLCallback(validation="split").',
    )
