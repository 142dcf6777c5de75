"""The calls of `split_data` on this rank: their arguments and results.

The ranks compare the arguments at the start of the next fit, which is a collective anyway, because
`split_data` of arrays is not a collective.
"""

import collections
import contextlib
import dataclasses
import inspect
import weakref
from typing import Any, NamedTuple

from easyddl.compat import user_code
from easyddl.data import array_data, kinds, set_epoch, summary
from easyddl.data.shard import Shard

_MOST_CALLS = 64  # recorded calls: a loop may split data without end, and without a fit


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of `split_data`.

    Attributes:
        place: String. Where the script made the call, such as `"train.py, line 12"`.
        options: String. The arguments besides the data.
        summaries: Dict of `summary.Summary`, by the path of the array.
        attributes: The same of arrays in attributes of a dataset of the user's own class. They may
            hold samples or their order, or something else.
    """

    place: str
    options: str
    summaries: dict
    attributes: dict


class Result(NamedTuple):
    """What a call of `split_data` has returned.

    Attributes:
        reference: Weak reference to an array or a dataset.
        shard: The `Shard` of this rank.
        items: Integer. The length of the array before the split; `None` for a dataset.
    """

    reference: weakref.ref
    shard: Shard
    items: int | None


# The latest calls that were not compared yet: pairs of a `Call` and the ids of its results.
_calls: collections.deque[tuple[Call, set[int]]] = collections.deque(maxlen=_MOST_CALLS)

# The `Result`s, by the ids of what was returned.
_results: dict[int, Result] = {}

# The datasets of the user's own classes that were split.
_datasets: weakref.WeakSet[Any] = weakref.WeakSet()

# The lengths of the arrays and lists that were returned.
_lengths: set[int] = set()


def note(leaves, options):
    """Records the arguments of a call of `split_data`, until the ranks compare them.

    Args:
        leaves: Dict of arrays by path, or of one dataset.
        options: String. The arguments besides the data.
    """
    found, attributes = {}, {}
    for path, leaf in leaves.items():
        found[path] = summary.of(leaf) or _of_dataset(leaf)
        for name, each in _arrays_in(leaf, "arrays_in").items():
            found[f"{path} ({name})"] = summary.of(each)
        # Equal tensors cannot be looked up in a set, and have no such attributes.
        if kinds.module_of(leaf) is not None and _is_first(leaf):
            for name, each in _arrays_in(leaf, "attributes_of").items():
                attributes[f"{path} ({name})"] = summary.of(each)
    known = {path: each for path, each in found.items() if each is not None}
    _calls.append((Call(_place(), options, known, attributes), set()))


def _of_dataset(data):
    """Returns the summary of a dataset or a loader; `None` if its length is unknown."""
    try:
        return summary.Summary((len(data),))
    except TypeError:  # TensorFlow raises this, too, if a length is unknown or infinite
        return None


def _arrays_in(data, finder):
    """Returns the arrays that a dataset or a loader holds, by name; empty for other data."""
    find = getattr(kinds.module_of(data), finder, None)
    # It may be a class of the user's own, or of another version of the framework.
    with user_code.suppress():
        return {} if find is None else find(data)
    return {}


def _is_first(data):
    """Returns whether a dataset is split for the first time, before this rank has read it."""
    with contextlib.suppress(TypeError):  # it has no weak references, or no hash
        if data in _datasets:
            return False
        _datasets.add(data)
    return True


def _place():
    frame = inspect.currentframe()
    while frame.f_globals.get("__name__", "").startswith("easyddl.") and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}, line {frame.f_lineno}"


def take(leaves):
    """Returns the calls that have not been compared, and forgets them.

    One rank may have made more calls than another one. Therefore the calls whose results a fit uses
    have keys of their own, and those of a place are counted from the last one.

    Args:
        leaves: List of the arrays, or of the dataset, of a fit.

    Returns:
        Dict of `Call`s. A key is a pair of a number and the place, or `None` for `leaves`.
    """
    used = {id(each) for leaf in leaves for each in _origins(leaf)}
    found, counts = {}, collections.Counter()
    for call, results in reversed(_calls):
        place = None if used & results else call.place
        counts[place] += 1
        found[place, -counts[place]] = call
    _calls.clear()
    return found


def compared(by_rank):
    """Returns the calls of `split_data` that the ranks compare.

    Args:
        by_rank: Dict by key of the lists of the ranks' calls; `None` on ranks without a key. See
            `take`.

    Returns:
        List of lists of `Call`, one for each rank. Of places that some ranks have called more often
        than others, only the last calls are compared.
    """
    unequal = {place for (place, _), calls in by_rank.items() if None in calls}
    return [
        calls
        for (place, number), calls in reversed(by_rank.items())
        if None not in calls and (place not in unequal or number == -1)
    ]


def note_result(structure, given, shard, is_noted):
    """Records the result of a call of `split_data`.

    Lists are not recorded: they have no weak references, so their end would go unnoticed.

    Args:
        structure: A structure of arrays, or a dataset.
        given: Dict of the arrays before the split by path, or of one dataset.
        shard: The `Shard` of this rank.
        is_noted: Boolean. Whether it is the result of the latest call that `note` has recorded.
    """
    leaves, _ = array_data.leaves_of(structure)
    shapes = filter(None, map(summary.shape_of, given.values()))
    items = next((shape[0] for shape in shapes), None)
    for leaf in leaves.values():
        shape = summary.shape_of(leaf)
        if shape is not None and len(_lengths) < _MOST_CALLS:
            _lengths.add(shape[0])
        key = id(leaf)
        try:
            reference = weakref.ref(leaf, lambda _, key=key: _forget(key))
        except TypeError:
            continue
        _results[key] = Result(reference, shard, items)
        if is_noted and _calls:
            _calls[-1][1].add(key)


def _forget(key):
    _results.pop(key, None)
    for _, results in _calls:
        results.discard(key)


def is_length_of_result(length):
    """Returns whether `split_data` has returned an array of this length.

    What a script computes from its shard has the length of the shard.
    """
    return length in _lengths


def result_of(leaf):
    """Returns the `Result` that an object is; `None` if `split_data` did not return it."""
    found = _results.get(id(leaf))
    return found if found is not None and found.reference() is leaf else None


def is_result(leaf):
    """Returns whether `split_data` returned an object, or the object that it was made from.

    This finds the base of a view, and datasets inside of a dataset. An array that is a copy does
    not show what it was made from.

    Args:
        leaf: Any object.
    """
    return next(_origins(leaf), None) is not None


def _origins(leaf):
    """Yields the results of `split_data` that an object is, or was made from."""
    if result_of(leaf) is not None:
        yield leaf
        return
    base = getattr(leaf, "base", None)
    for inner in set_epoch.inner_of(leaf) if base is None else [base]:
        yield from _origins(inner)


def unsplit_summaries(leaves):
    """Returns the summaries of data that `split_data` has not returned.

    Args:
        leaves: List of arrays, a dataset, and `None`: arguments of `fit` or `evaluate`.

    Returns:
        Dict of `summary.Summary` by the number of the array; empty if some of the data came from
        `split_data`, or are no arrays.
    """
    leaves = [leaf for leaf in leaves if leaf is not None]
    if any(map(is_result, leaves)):
        return {}  # a summary takes milliseconds
    summaries = [summary.of(leaf) for leaf in leaves]
    return {} if None in summaries else {i: each for i, each in enumerate(summaries)}
