"""Merges the metrics of an evaluation over all ranks.

Most metrics are the same whether all ranks evaluate the same data or each its own shard: their
results are quotients. Counts are not. Those of the same data count once.
"""

import keras

from easyddl.collectives import objects
from easyddl.data import split_calls, summary
from easyddl.runtime import notices, world
from easyddl.training import comparison, metrics

VALIDATIONS = ("same", "split")


def shared_logs(model, logs, data=(), validation=None):
    """Returns the logs of an evaluation of all ranks. Collective: see `metrics.shared_logs`.

    Args:
        model: A compiled Keras model.
        logs: Dict that this rank's last step returned; empty if this rank evaluates nothing.
        data: Tuple of what this rank evaluates: arrays, or a dataset.
        validation: `"same"` if all ranks evaluate the same data, `"split"` if each evaluates its
            shard, or `None`: the ranks compare the contents of arrays.
    """
    has_samples = bool(logs)
    counts = metrics.counts_of(model)
    if counts and validation != "split":
        mine = comparison.unsplit_summaries(data) if validation is None else {}
        is_unknown = has_samples and not mine and not _is_split(data) and validation is None
        by_rank = objects.allgather_object((has_samples, mine, is_unknown))
        if validation == "same" or summary.are_equal([each for _, each, _ in by_rank]):
            first = next((rank for rank, (has, _, _) in enumerate(by_rank) if has), 0)
            return metrics.shared_logs(model, logs, has_samples and world.rank() == first)
        if any(unknown for _, _, unknown in by_rank):
            _warn_of_counts(counts)
    return metrics.shared_logs(model, logs, has_samples)


def _is_split(data):
    return any(map(split_calls.is_result, keras.tree.flatten(data)))


def _warn_of_counts(counts):
    names = ", ".join(sorted({each.name for each in counts}))
    notices.tell_once(
        "counts",
        f"warning: the metrics {names} of all ranks are added. If they are counts, and all ranks "
        'evaluate the same data, pass DDLCallback(validation="same"), so that they count once. If '
        'each evaluates its own shard, pass DDLCallback(validation="split").',
    )
