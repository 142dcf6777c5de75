"""Turns the Markdown in docstrings into reStructuredText, which Sphinx reads there.

Docstrings are written as Keras's are: in Google's style, with code and links in Markdown.
"""

import re

_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
_LINK = re.compile(r"\[([^]]+)\]\((https?://[^)\s]+)\)")
_CODE = re.compile(r"(?<![`>])`([^`<]+)`(?!`|__)")


def to_restructured_text(app, what, name, obj, options, lines):
    """Converts the lines of a docstring in place, before the extension napoleon reads them."""
    lines[:] = _convert("\n".join(lines)).split("\n")


def _convert(text):
    converted, indent = [], None  # `indent` is that of the block of code, if in one
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if fence and indent is None:
            indent = fence[1]
            converted += ["", f"{indent}.. code-block:: {fence[2] or 'text'}", ""]
        elif fence:
            indent = None
            converted.append("")
        elif indent is not None:
            converted.append(f"    {line}" if line.strip() else "")
        else:
            converted.append(_in_line(line))
    return "\n".join(converted)


def _in_line(line):
    """Converts what is in a line of text: a title, links, and code."""
    if line in ("Example:", "References:"):
        return f".. rubric:: {line[:-1]}\n"
    return _CODE.sub(r"``\1``", _LINK.sub(r"`\1 <\2>`__", line))
