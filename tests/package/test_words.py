"""One word for one thing."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = [
    path
    for folder, endings in (
        ("easyddl", (".py", ".pyi")),
        ("ext", (".cpp", ".h")),
        ("tutorials", (".md",)),
    )
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in endings and path.name != "changes.md"
]

# What each retired word means, in the words that stay. In ext/ a machine is what one kernel runs,
# which may play several hosts.
RETIRED = {
    r"hand(s|ed|ing)? (it |them )?in\b(?! hand)": "submit",
    r"\b(came|went|undriven)_": "arrived_, left_, not_advancing_",
    r"\b[Hh]erald|\bkHerald": "announcement",
    r"\b[Ss]tranger": "pending client",
    r"\bgoes_elsewhere": "is_external",
    r"\b(this|one|each|the same) node\b": "host",
    r"\bsuch a one\b": "the noun itself",
    r"\b[Ww]hoever\b": "the subject itself",
    r"\b[Gg]radients? (then )?leaves?\b": "gradients are submitted",
    r"\bsent as (a )?dense\b": "reduced as dense gradients",
    r"\bplain (learning )?rates?\b": "constant rate",
    r"\bno name of a\b": "not a valid name",
    r"\bstarts? the ranks by\b": "with",
}

# Those that the engine's comments and messages still use.
RETIRED_IN_PYTHON = {
    r"\bexchang(e|es|ing) (of )?gradients\b": "reduce gradients, reduction of gradients",
    r"\bfor ever\b": "forever",
    r"\banew\b": "again",
    r"\bTo be called\b": "Call it",
    r"\bundoes it\b": "undoes the change",
    r"\ba host a line\b": "one host on each line",
    r"\b(has|have|had) come\b": "has arrived",
    r"\bwhat (there is|has come|has become)\b": "the noun itself",
}


def _uses(pattern, files):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize(("pattern", "word"), RETIRED.items())
def test_no_retired_word_is_used(pattern, word):
    found = _uses(pattern, FILES)
    assert not found, f"Write {word} instead of {pattern}:\n" + "\n".join(found)


@pytest.mark.parametrize(("pattern", "word"), RETIRED_IN_PYTHON.items())
def test_no_retired_word_is_used_in_python(pattern, word):
    found = _uses(pattern, [path for path in FILES if path.suffix == ".py"])
    assert not found, f"Write {word} instead of {pattern}:\n" + "\n".join(found)
