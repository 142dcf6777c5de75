"""The calls of `split_data` on this rank: their arguments and results.

The ranks compare the arguments at the start of the next fit, which is a collective anyway, because
`split_data` of arrays is not a collective.
"""

import dataclasses
import inspect
import weakref

from easyddl.data import array_data, kinds, set_epoch, summary

_MOST_CALLS = 64  # recorded calls: a loop may split data without end, and without a fit


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of `split_data`.

    Attributes:
        options: String. The arguments besides the data.
        summaries: Dict of `summary.Summary`, by the path of the array.
    """

    options: str
    summaries: dict


_calls: dict[tuple[str, int], Call] = {}  # by the place of the call, and its number there
_counts: dict[str, int] = {}  # the number of calls by place
_results: dict[int, weakref.ref] = {}  # the returned objects, by their ids
_lengths: set[int] = set()  # those of returned arrays and lists


def note(leaves, options):
    """Records the arguments of a call of `split_data`, until the ranks compare them.

    Args:
        leaves: Dict of arrays by path, or of one dataset.
        options: String. The arguments besides the data.
    """
    place = _place()
    number = _counts[place] = _counts.get(place, 0) + 1
    if len(_calls) < _MOST_CALLS:
        found = {}
        for path, leaf in leaves.items():
            found[path] = summary.of(leaf) or _of_dataset(leaf)
            for name, each in _arrays_in(leaf).items():
                found[f"{path} ({name})"] = summary.of(each)
        kept = {path: each for path, each in found.items() if each is not None}
        _calls[place, number] = Call(options, kept)


def _of_dataset(data):
    """Returns the summary of a dataset or a loader; `None` if its length is unknown."""
    try:
        return summary.Summary((len(data),))
    except TypeError:  # TensorFlow raises this, too, if a length is unknown or infinite
        return None


def _arrays_in(data):
    """Returns the arrays that a dataset or a loader holds, by name; empty for other data."""
    find = getattr(kinds.module_of(data), "arrays_in", None)
    try:
        return {} if find is None else find(data)
    except Exception:  # a class of the user's own, or another version of the framework
        return {}


def _place():
    """Returns the place where the script called `split_data`, such as `"train.py, line 12"`."""
    frame = inspect.currentframe()
    while frame.f_globals.get("__name__", "").startswith("easyddl.") and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}, line {frame.f_lineno}"


def take():
    """Returns the calls that have not been compared, by place and number, and forgets them."""
    taken = dict(_calls)
    _calls.clear()
    return taken


def note_result(structure):
    """Records the result of a call of `split_data`.

    Lists are not recorded: they have no weak references, so their end would go unnoticed.

    Args:
        structure: A structure of arrays, or a dataset.
    """
    leaves, _ = array_data.leaves_of(structure)
    for leaf in leaves.values():
        shape = summary.shape_of(leaf)
        if shape is not None and len(_lengths) < _MOST_CALLS:
            _lengths.add(shape[0])
        key = id(leaf)
        try:
            _results[key] = weakref.ref(leaf, lambda _, key=key: _results.pop(key, None))
        except TypeError:
            continue


def is_length_of_result(length):
    """Returns whether `split_data` has returned an array of this length.

    What a script computes from its shard has the length of the shard.
    """
    return length in _lengths


def is_result(leaf):
    """Returns whether `split_data` returned an object, or the object that it was made from.

    This finds the base of a view, and datasets inside of a dataset. An array that is a copy does
    not show what it was made from.

    Args:
        leaf: Any object.
    """
    found = _results.get(id(leaf))
    if found is not None and found() is leaf:
        return True
    base = getattr(leaf, "base", None)
    return any(map(is_result, set_epoch.inner_of(leaf) if base is None else [base]))
