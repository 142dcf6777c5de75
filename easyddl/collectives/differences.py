"""How the ranks find what differs between them: one exchange for any number of subjects.

Each rank runs the script by itself, so each may pass other data or make another model. The ranks
would train together without a word, and get another result than one process.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any

from easyddl.collectives import objects
from easyddl.runtime import console, notices, settled_errors, world

SAME_ON_ALL_RANKS = (
    "Each rank runs the script by itself: set seeds before random choices, sort what the file "
    "system lists, and let one rank choose what is searched, by ddl.broadcast_object()."
)

_ROUNDING = 2.0**-22  # relative; neighbouring numbers of a float32 differ by up to half of it


def gather(values):
    """Returns the values of all ranks. Collective.

    The ranks exchange checksums first, and then the values whose checksums differ.

    Args:
        values: Dict of this rank's values by subject. The text (`repr`) of a value shows all of it.

    Returns:
        Dict by subject, equal on all ranks. Each item is the list of the ranks' values; `None` for
        a rank that has no such subject.
    """
    texts = {subject: repr(value) for subject, value in values.items()}
    mine = {key: zlib.crc32(text.encode(errors="replace")) for key, text in texts.items()}
    everyones = objects.allgather_object(mine)
    subjects = {subject: None for each in everyones for subject in each}
    differing = [key for key in subjects if len({each.get(key) for each in everyones}) > 1]
    found = {subject: [values.get(subject)] * world.size() for subject in subjects}
    if differing:
        everyones = objects.allgather_object({key: values.get(key) for key in differing})
        found.update({key: [each[key] for each in everyones] for key in differing})
    return found


def differences(values):
    """Returns those items of `gather` whose values differ between the ranks. Collective.

    Args:
        values: Dict: see `gather`.
    """
    found = gather(values)
    return {key: each for key, each in found.items() if not are_equal(each)}


def are_equal(by_rank, rounding=_ROUNDING):
    """Returns whether the values of all ranks are equal, numbers up to rounding.

    Args:
        by_rank: List of numbers, other plain values, and lists, tuples and dicts of them.
        rounding: Float. The relative difference up to which numbers are equal.
    """
    return all(_is_equal(each, by_rank[0], rounding) for each in by_rank)


def _is_equal(one, other, rounding):
    if one is other:  # `gather` returns this rank's value for ranks of the same checksum
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _is_equal(one[key], other[key], rounding) for key in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_equal(*pair, rounding) for pair in pairs)
    if isinstance(one, float) or isinstance(other, float):
        try:
            both_nan = math.isnan(one) and math.isnan(other)
            return both_nan or math.isclose(one, other, rel_tol=rounding)
        except TypeError:
            return False
    return one == other


@dataclasses.dataclass(frozen=True)
class Subject:
    """Something that all ranks must have equal, and what is said if they do not.

    Attributes:
        text: String. What differs, and what to do.
        is_error: Boolean. Whether all ranks raise an error; otherwise the root prints a warning.
        differ: Function of the list of the ranks' values. It returns whether they differ in a way
            that matters.
        show: Function of a value, which returns its text in a message.
    """

    text: str
    is_error: bool = False
    differ: Callable[[list], bool] = lambda by_rank: not are_equal(by_rank)
    show: Callable[[Any], str] = repr

    def compare(self, by_rank):
        """Raises the error, or prints the warning, if the ranks' values differ.

        Args:
            by_rank: List of values: see `gather`.

        Raises:
            ValueError: On all ranks.
        """
        if self.differ(by_rank):
            tell(f"{self.text} Received: {console.by_rank(map(self.show, by_rank))}", self.is_error)


def tell(text, is_error):
    """Raises a `ValueError` that all ranks raise, or prints a warning on the root."""
    if is_error:
        raise settled_errors.settled(ValueError(text))
    notices.tell(f"warning: {text}")
