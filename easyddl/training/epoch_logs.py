"""The entries of an epoch's logs that are no results of the model's metrics.

An `evaluate` of the model's own may add them, and so may callbacks. Each rank computes them by
itself. If they differ, callbacks such as `EarlyStopping` decide differently on each rank.
"""

import numpy as np

from easyddl.runtime import notices
from easyddl.training import metrics


def share(logs, own):
    """Gives all ranks the mean of entries over the ranks that have them. Collective.

    Args:
        logs: Dict of the epoch's logs, which is changed.
        own: Dict of the entries that this rank has computed by itself.
    """
    means = metrics.mean_logs(own)
    for key in own:
        logs.pop(key)
    logs.update(means)
    for key in means:
        notices.tell_once(
            ("own log", key),
            f"warning: {key!r} of the epoch's logs is no result of the model's metrics. Each rank "
            "computes it by itself, so all ranks get the mean of their values.",
        )


def numbers_of(logs):
    """Returns the entries that are single numbers, as floats."""
    numbers = {}
    for key, value in logs.items():
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers


def warn_of_differences(by_rank, epoch):
    """Warns of entries that differ between the ranks that have them, once for each entry.

    Args:
        by_rank: List of dicts of floats, one for each rank.
        epoch: Integer. The epoch, from 0.
    """
    for key in {key: None for numbers in by_rank for key in numbers}:
        values = {rank: numbers[key] for rank, numbers in enumerate(by_rank) if key in numbers}
        if not np.array_equal(*_extremes(values), equal_nan=True):
            notices.tell_once(
                ("differs", key),
                f"warning: {key!r} of the logs of epoch {epoch + 1} differs between the ranks. A "
                "callback adds it from this rank's own data. Callbacks that use it decide "
                "differently on each rank, so that the ranks' weights part. Compute it from the "
                f"data of all ranks, by ddl.allreduce() for example. Received, by rank: {values}",
            )


def _extremes(values):
    return np.min(list(values.values())), np.max(list(values.values()))
