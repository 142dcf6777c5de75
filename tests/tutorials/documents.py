"""Reads the code blocks of README.md and of the guides, and the comments that say how to run them.

A block is a fence with a language. GitHub does not show a comment of HTML; one or more of these may
stand before a block of `python` or `sh`:

    <!-- not run: REASON -->      a test cannot run it; REASON is one of `REASONS`
    <!-- run: soak -->            it takes long, so the soak runs it
    <!-- run: longest -->         it takes very long: `.ci/run longest` runs it
    <!-- shortened: OPTIONS -->   it takes very long: `.ci/run longest` runs it with these options
    <!-- command: NAME -->        `.ci/run` runs it, in an environment of its own
    <!-- setup: NAME -->          a fragment, before which one of run_document.py's `SETUPS` is run
"""

import dataclasses
import functools
import pathlib
import re

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).parents[2]

EXECUTED = ("python", "sh")
DATA = ("json", "toml", "yaml")
SHOWN = ("cpp", "diff", "mermaid", "text")

REASONS = ("needs a cluster", "needs a GPU")


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        path: Path of the document.
        line: Number of the line before its first line of code, counted from 1.
        language: String; empty for a block that is indented, or a fence that names none.
        code: String.
        markers: Dictionary. The comments before it, as in `{"not run": "needs a GPU"}`.
    """

    path: pathlib.Path
    line: int
    language: str
    code: str
    markers: dict

    @property
    def place(self):
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def is_directive(self):
        """Whether it is one of the site's, such as `{toctree}`, and no code."""
        return self.language.startswith("{")

    @property
    def is_run(self):
        """Whether a test of this document runs it."""
        left_out = self.markers.keys() & {"not run", "command"}
        return self.language in EXECUTED and not left_out

    @property
    def mark(self):
        """The marker of the test that runs it; empty for the gate, or the stage `full`."""
        return "longest" if "shortened" in self.markers else self.markers.get("run", "")

    @property
    def needs_root(self):
        return "sudo " in self.code

    @property
    def shortened(self):
        """Its code, in which options shorten each line if a comment gives some."""
        if "shortened" not in self.markers:
            return self.code
        options = self.markers["shortened"]
        return "".join(f"{line} {options}\n" for line in self.code.splitlines())


def documents():
    """The paths of README.md and of all guides."""
    guides = ROOT / "tutorials"
    return [ROOT / "README.md", *sorted(guides.glob("*.md")), *sorted(guides.glob("*/*.md"))]


@functools.cache
def blocks(path):
    """All code blocks of a document, in their order."""
    found, markers = [], {}
    for token in MarkdownIt("commonmark").parse(path.read_text()):
        if token.type == "html_block":
            markers.update(_markers(token.content))
            continue
        if token.type in ("fence", "code_block"):
            is_fence = token.type == "fence"
            line = token.map[0] + is_fence
            found.append(Block(path, line, token.info.strip(), token.content, markers))
        markers = {}
    return found


def _markers(html):
    comments = re.findall(r"<!--\s*(.*?)\s*-->", html, re.DOTALL)
    return dict((*comment.split(": ", 1), "")[:2] for comment in comments)
