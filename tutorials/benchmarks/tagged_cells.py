"""Executes some cells of a tutorial notebook, so that a benchmark measures what it shows."""


def execute(source, tag, **names):
    """Executes the cells with a tag, in their order.

    Args:
        source: Path of the notebook's source, in jupytext's percent format.
        tag: String.
        **names: The names that the cells use and do not define.

    Returns:
        Dictionary of `names` and of the names that the cells define.
    """
    import jupytext

    cells = jupytext.read(source).cells
    tagged = [cell.source for cell in cells if tag in cell.metadata.get("tags", ())]
    exec("\n\n".join(tagged), names)
    return names
