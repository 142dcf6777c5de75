"""Tables of text, which all commands print."""


def lines(rows, left=()):
    """Returns the lines of a table, whose columns are as wide as their longest cell.

    Args:
        rows: List of lists of strings, of equal length.
        left: Container of the numbers of columns that are aligned to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [line(row, widths, left) for row in rows]


def line(cells, widths, left=()):
    """Returns a line of a table.

    Args:
        cells: List of strings.
        widths: List of integers. The width of each column.
        left: Container of the numbers of columns that are aligned to the left.
    """
    padded = [
        cell.ljust(width) if number in left else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
