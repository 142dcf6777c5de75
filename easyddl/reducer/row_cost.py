"""The bytes that gathering sparse gradients sends, compared with reducing dense gradients."""

from easyddl.runtime import notices

_INDEX_BYTES = 8
_HINT = (
    "hint: sparse gradients have sent more bytes than dense gradients would have sent. Pass "
    "sparse_as_dense=True to reduce dense gradients. The optimizer then gets the sum of the rows "
    "of each index, not the single rows."
)


def advise(tables, steps, counts):
    """Prints a hint on the root, once, if dense gradients would have sent fewer bytes.

    Args:
        tables: List of tuples: the name of a variable, its dtype, its number of rows, and the bytes
            of a row.
        steps: Integer. The number of steps.
        counts: List of integers. For each table, the number of rows that all ranks sent in these
            steps.
    """
    gathered = sum(
        count * (_INDEX_BYTES + row_bytes)
        for count, (_, _, _, row_bytes) in zip(counts, tables, strict=True)
    )
    # An allreduce of dense gradients would send each byte twice.
    reduced = steps * sum(2 * rows * row_bytes for _, _, rows, row_bytes in tables)
    if gathered > reduced:
        notices.tell_once(advise, _HINT)
