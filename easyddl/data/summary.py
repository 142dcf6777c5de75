"""Summaries of arrays, which ranks compare: lengths and sampled contents.

A summary has a few kilobytes. All ranks sample the same positions. It does not prove that contents
are equal, but it shows the usual differences: other data, another order, and other random numbers.
"""

import dataclasses
import math
import zlib

import numpy as np

from easyddl.compat import user_code
from easyddl.data import array_data, sparse
from easyddl.data.kinds import is_a

_MOST_ROWS = 1024
_MOST_ELEMENTS = 2**18  # to read, in whole rows
_MOST_NUMBERS = 256  # to keep in the summary

# A smaller difference of floats may be rounding: another order of summation, or another processor.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6
_OF_SUMS = 1e-2


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary of one array, tensor, table or list.

    Attributes:
        shape: Tuple of integers. For a list, its length.
        digest: Integer. A checksum of sampled integers, booleans and texts; `None` for floats, and
            if the contents are not compared.
        floats: Tuple of floats at some positions of the sample; empty for other contents.
        sums: Tuple of sums over all sampled floats with random signs, in units of the sample's
            norm.
        is_constant: Boolean. Whether all sampled elements are equal.
    """

    shape: tuple
    digest: int | None = None
    floats: tuple = ()
    sums: tuple = ()
    is_constant: bool = True

    @property
    def has_contents(self):
        """Whether the contents were sampled."""
        return self.digest is not None or len(self.floats) > 0


def of(leaf):
    """Returns the `Summary` of one array, tensor, table or list; `None` for other objects."""
    shape = shape_of(leaf)
    if shape is None:
        return None
    with user_code.suppress():
        return _of_contents(shape, _sample(leaf, shape))
    return Summary(shape)  # rows of this type cannot be read, so only the lengths are compared


def shape_of(leaf):
    """Returns the shape of an array, a tensor, a table or a list; `None` if it has no length."""
    if isinstance(leaf, list):
        return (len(leaf),)
    shape = getattr(leaf, "shape", None)
    try:
        shape = tuple(None if each is None else int(each) for each in shape)
    except (TypeError, ValueError):
        return None
    return shape if shape and shape[0] is not None else None


def arrays_in_attributes(owner, least):
    """Returns the arrays and lists in the public attributes of an object, by name.

    Args:
        owner: A dataset of the user's own class.
        least: Integer. The least length of what holds samples, or their order.
    """
    found = {
        f"its attribute `{name}`": each for name, each in vars(owner).items() if name[0] != "_"
    }
    shapes = {name: shape_of(each) for name, each in found.items()}
    return {n: each for n, each in found.items() if shapes[n] and shapes[n][0] >= max(least, 2)}


def _sample(leaf, shape):
    """Returns sampled elements as an array with two axes, or `None`."""
    is_file = is_a(leaf, "h5py")  # reading its rows is slow
    if sparse.is_sparse(leaf) or is_file or None in shape or 0 in shape:
        return None
    elements = math.prod(shape[1:])
    count = max(4, min(_MOST_ROWS, _MOST_ELEMENTS // elements))
    rows = np.unique(np.linspace(0, shape[0] - 1, count).astype(np.int64))
    sample = array_data.take(leaf, rows)
    sample = sample.to_numpy() if hasattr(sample, "iloc") else sample
    sample = sample.detach().cpu() if hasattr(sample, "detach") else sample
    return np.asarray(sample).reshape(len(rows), -1)


def _of_contents(shape, sample):
    if sample is None:
        return Summary(shape)
    is_constant = bool((sample == sample[:1, :1]).all())
    if sample.dtype.kind in "fcV":  # V: bfloat16 and similar types
        floats = np.abs(sample) if sample.dtype.kind == "c" else sample
        floats = floats.reshape(-1).astype(np.float64)
        # Equal steps would meet one column only, in rows whose length divides them.
        random = np.random.default_rng(floats.size)
        places = random.choice(floats.size, min(floats.size, _MOST_NUMBERS), replace=False)
        some = tuple(floats[places].tolist())
        return Summary(shape, None, some, _sums(floats, random), is_constant)
    if sample.dtype.kind == "O":
        texts = [repr(each) for each in sample.reshape(-1) if _is_plain(each)]
        content = "\n".join(texts).encode() if len(texts) == sample.size else None
    else:
        content = np.ascontiguousarray(sample).tobytes()
    digest = None if content is None else zlib.crc32(content)
    return Summary(shape, digest=digest, is_constant=is_constant)


def _sums(floats, random):
    """Returns sums with random signs, which another order or another sample changes."""
    finite = np.where(np.isfinite(floats), floats, 0.0)
    scale = np.abs(finite).max(initial=0.0)
    norm = scale and np.linalg.norm(finite / scale)  # squares of large numbers would overflow
    if norm == 0:
        return (0.0, 0.0)
    signs = 1.0 - 2.0 * random.integers(0, 2, (2, floats.size))
    return tuple((signs @ (finite / scale) / norm).tolist())


def _is_plain(value):
    """Returns whether equal values have equal texts on all ranks."""
    return value is None or isinstance(value, str | bytes | int | float | np.generic)


def difference(by_rank):
    """Compares the ranks' summaries of one argument.

    Args:
        by_rank: List of `Summary`.

    Returns:
        `"shapes"`, `"contents"`, `"floats"` if sampled floats differ by more than rounding, or
        `None`.
    """
    first = by_rank[0]
    if any(each.shape != first.shape for each in by_rank):
        return "shapes"
    if any(each.digest != first.digest for each in by_rank):
        return "contents"
    if any(not _are_close(each, first) for each in by_rank):
        return "floats"
    return None


def _are_close(one, other):
    if len(one.floats) != len(other.floats):
        return False
    scale = max((abs(each) for each in other.floats if math.isfinite(each)), default=0.0)
    return np.allclose(
        one.floats, other.floats, _RELATIVE, _ABSOLUTE * scale, equal_nan=True
    ) and np.allclose(one.sums, other.sums, 0, _OF_SUMS)


def are_equal(by_rank):
    """Returns whether the ranks' data are the same, as far as summaries show.

    Args:
        by_rank: List of dicts of `Summary` by path, one for each rank.

    Returns:
        Boolean: whether there is no `difference`. `False` also if contents were not sampled, or
        are constant.
    """
    first = by_rank[0]
    sampled = [each for each in first.values() if each.has_contents]
    return (
        any(not each.is_constant for each in sampled)
        and len(sampled) == len(first)
        and all(each.keys() == first.keys() for each in by_rank)
        and all(difference([each[path] for each in by_rank]) is None for path in first)
    )
