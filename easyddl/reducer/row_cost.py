"""What rows of sparse gradients cost on their way, beside dense gradients."""

from easyddl.runtime import notices

_INDEX_BYTES = 8
_HINT = (
    "hint: sparse gradients have taken more bytes on their way than dense ones would have. Pass "
    "sparse_as_dense=True to send dense ones. The optimizer then gets the sum of rows that come "
    "several times, and not each of them."
)


def advise(tables, steps, counts):
    """Says, once on the root, where dense gradients would have been cheaper.

    Args:
        tables: List of tuples: the name of a variable, its dtype, its rows and the bytes of a row.
        steps: Integer. How many steps there were.
        counts: List of integers. How many rows of each table all ranks have had in them.
    """
    gathered = sum(
        count * (_INDEX_BYTES + row_bytes)
        for count, (_, _, _, row_bytes) in zip(counts, tables, strict=True)
    )
    if gathered > steps * allreduced_bytes(tables):
        notices.tell_once(advise, _HINT)


def allreduced_bytes(tables):
    """What an allreduce moves of dense gradients of these tables: each byte there and back."""
    return sum(2 * rows * row_bytes for _, _, rows, row_bytes in tables)
