"""The entries of an epoch's logs that are no results of the model's metrics.

An `evaluate` of the model's own may add them, and so may callbacks. Each rank computes them by
itself. If they differ, callbacks such as `EarlyStopping` decide differently on each rank.
"""

import dataclasses

import keras
import numpy as np

from easyddl.collectives.variables import checksum
from easyddl.runtime import console, notices, world
from easyddl.training import metrics

_MOST_SHOWN = 4  # values of an entry that has several


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of one rank's logs, as far as the ranks compare it.

    Attributes:
        contents: The shapes and the checksum of its numbers. `None` if it contains other than
            numbers, such as a text: then its values are not compared.
        text: String, for messages.
    """

    contents: tuple | None
    text: str = dataclasses.field(compare=False)


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


def entries_of(logs):
    """Returns the entries of the logs as a dict of `Entry`."""
    return {key: _entry(value) for key, value in logs.items()}


def _entry(value):
    arrays = [metrics.as_array(leaf) for leaf in keras.tree.flatten(value)]
    if not arrays or any(each is None for each in arrays):
        return Entry(None, f"a {type(value).__name__}")
    numbers = np.concatenate([each.ravel() for each in arrays])
    numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0)  # one NaN, and no zero below 0
    if numbers.size == 1:
        return Entry(((), checksum(numbers)), repr(float(numbers[0])))
    shown = ", ".join(f"{each:.6g}" for each in numbers[:_MOST_SHOWN])
    more = ", ..." * (numbers.size > _MOST_SHOWN)
    shapes = tuple(each.shape for each in arrays)
    text = f"{numbers.size} numbers ({shown}{more}; their sum is {numbers.sum():.6g})"
    return Entry((shapes, checksum(numbers)), text)


def warn_of_differences(by_rank, own_by_rank, epoch):
    """Warns of entries that differ, or that only some ranks have, once for each entry.

    Args:
        by_rank: List of dicts of `Entry`, one for each rank.
        own_by_rank: List of the names of the entries that a rank has computed by itself. Ranks may
            have other names for results of metrics, which are not missing.
        epoch: Integer. The epoch, from 0.
    """
    own = {key for names in own_by_rank for key in names}
    for key in {key: None for entries in by_rank for key in entries}:
        found = [entries.get(key) for entries in by_rank]
        some_lack_it = None in found and key in own
        contents = {each.contents for each in found if each is not None}
        if some_lack_it or len(contents) > 1:
            _warn_of(key, found, some_lack_it, epoch)


def _warn_of(key, found, some_lack_it, epoch):
    is_known = "exists on some ranks only" if some_lack_it else "differs between the ranks"
    cause = "A callback adds it there." if some_lack_it else "Each rank has its own value."
    texts = ["nothing" if each is None else each.text for each in found]
    notices.tell_once(
        ("differs", key),
        f"warning: {key!r} of the logs of epoch {epoch + 1} {is_known}. {cause} Callbacks that use "
        "it decide differently on each rank, so that the ranks' weights part. Add it on all ranks, "
        "computed from the data of all ranks, by ddl.allreduce() for example. Received: "
        f"{console.by_rank(texts)}",
    )
