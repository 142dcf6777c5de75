"""Links of README.md, the guides and the notebooks lead to files and headings that exist.

The stage `site` builds the pages, and checks the links too. It takes minutes.
"""

import functools
import pathlib
import re
import urllib.parse

import documents
import nbformat
import pytest
from markdown_it import MarkdownIt

PAGES = sorted(
    path
    for path in (documents.ROOT / "README.md", *(documents.ROOT / "tutorials").rglob("*"))
    if path.suffix in (".md", ".ipynb")
)


@functools.cache
def tokens(path):
    """Returns the tokens of a document, or of the text of a notebook."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return MarkdownIt("commonmark").enable("table").parse(text)


@functools.cache
def anchors(path):
    """Returns the names that GitHub and the site give to a document's headings."""
    found = set()
    for opening, inline in zip(tokens(path), tokens(path)[1:], strict=False):
        if opening.type == "heading_open":
            words = "".join(each.content for each in inline.children).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def links(path):
    """Yields the targets of links to other documents, and within this one."""
    for token in tokens(path):
        for each in token.children or ():
            target = each.attrGet("href") or each.attrGet("src")
            if target and not urllib.parse.urlparse(target).scheme:
                yield urllib.parse.unquote(target)


def problem(path, target):
    """Returns what is wrong with a link; `None` if it leads somewhere."""
    name, _, anchor = target.partition("#")
    there = (path.parent / name).resolve() if name else path
    if not there.exists():
        return f"{target}: there is no such file"
    if anchor and there.suffix in (".md", ".ipynb") and anchor not in anchors(there):
        return f"{target}: {there.name} has no such heading"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(documents.ROOT)))
def test_links_lead_somewhere(path):
    assert not [found for target in links(path) if (found := problem(path, target))]


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c-d, e\n\n[x](#a-b-c-d-e) [y](#other) ![z](none.png) [w](page.md#no)\n"
    )
    found = [problem(pathlib.Path(page), target) for target in links(page)]
    assert found == [
        None,
        "#other: page.md has no such heading",
        "none.png: there is no such file",
        "page.md#no: page.md has no such heading",
    ]
