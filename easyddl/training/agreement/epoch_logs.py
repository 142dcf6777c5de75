"""The entries of an epoch's logs that are no results of the model's metrics.

An `evaluate` of the model's own may add them, and so may callbacks. Each rank computes them by
itself.
"""

from easyddl.collectives import differences
from easyddl.runtime import console, notices, world
from easyddl.training.metrics import metrics


def share(logs, own):
    """Gives all ranks the mean of entries over the ranks that have them. Collective.

    Args:
        logs: Dict of the epoch's logs, which is changed.
        own: Dict of the entries that this rank has computed by itself.
    """
    by_rank = metrics.gathered_logs(own)
    means = metrics.means(by_rank)
    for key in own:
        logs.pop(key)
    logs.update(means)
    for key in means:
        holders = sorted(by_rank[key])
        only = f" Only {console.ranks(holders)} computed it."
        notices.tell_once(
            ("own log", key),
            f"warning: {key!r} of the epoch's logs is no result of the model's metrics. Each rank "
            "computes it by itself, so all ranks get the mean of their values."
            f"{only if len(holders) < world.size() else ''}",
        )


def numbers_in(logs):
    """Returns the entries of the logs that are one number each."""
    arrays = {key: metrics.as_array(value) for key, value in logs.items()}
    return {key: a.item() for key, a in arrays.items() if a is not None and a.size == 1}


def monitored_by(callbacks):
    """Returns the names of the entries by which callbacks decide, such as `EarlyStopping`."""
    return {getattr(each, "monitor", None) for each in callbacks} - {None}


def warn_of_differences(by_rank, monitored_by_rank, epoch):
    """Warns of entries that differ, and by which callbacks decide, once for each entry.

    Args:
        by_rank: List of the results of `numbers_in` on all ranks.
        monitored_by_rank: List of the results of `monitored_by`.
        epoch: Integer. The epoch, from 0.
    """
    for key in sorted(set().union(*monitored_by_rank)):
        found = [each.get(key) for each in by_rank]
        if differences.are_equal(found):
            continue
        what = "exists on some ranks only" if None in found else "differs between the ranks"
        notices.tell_once(
            ("differs", key),
            f"warning: {key!r} of the logs of epoch {epoch + 1} {what}, and a callback monitors "
            "it. Such callbacks decide differently on each rank. Add the entry on all ranks, "
            "computed from the data of all ranks, by ddl.allreduce() for example. Received: "
            f"{console.by_rank('nothing' if each is None else each for each in found)}",
        )
