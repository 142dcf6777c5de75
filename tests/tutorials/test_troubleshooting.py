"""Each message of easyddl that gives advice has its row in tutorials/troubleshooting.md.

The messages are the texts in the sources in which a sentence, or what follows a colon, begins with
a verb of advice, such as "Pass" or "Install". A row quotes them in its first column, in italics.
Three dots in a quotation stand for anything. This prints the messages that no row quotes:

    python tests/tutorials/test_troubleshooting.py
"""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "tutorials" / "troubleshooting.md"

# Where advice is a part of the output of a command, beside what was found, or a help text.
ELSEWHERE = {
    "easyddl/doctor": "`easyddl doctor` prints for each finding what to do",
    "easyddl/cli/scaling/scaling_verdict.py": "tutorials/scaling.md has a table of its own",
}

VERBS = re.findall(
    r"\w+",
    """
    add ask avoid begin build call cast change check choose close compare compile compute
    convert correct create declare do give import install keep leave let limit load make move
    name pad pass put raise remove rename replace restart return run select send set share
    shuffle split start submit take train unset use wait wrap write
    """,
)
_VERB = "(?:{})".format("|".join(f"[{verb[0].upper()}{verb[0]}]{verb[1:]}" for verb in VERBS))
_CAPITAL = "(?:{})".format("|".join(verb.capitalize() for verb in VERBS))
# In the middle of a text: after the end of a sentence, or after a colon, where code may follow.
ADVICE = re.compile(rf"(?:[.!?)]\s+|^){_CAPITAL}\b (?!MPI)|[:;] (?:or )?{_VERB}\b ", re.MULTILINE)
WORDS = 6  # of a message; shorter texts are labels
QUOTED = 15  # characters of a quotation, at least

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def _text(node):
    """Returns the text of an expression, with {} for what it inserts; `None` if it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            each.value if isinstance(each, ast.Constant) else "{}" for each in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_text(node.left), _text(node.right)]
        return None if sides == [None, None] else "".join(side or "{}" for side in sides)
    return None


def _docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def texts_of_python(source):
    """Yields the texts of a module, but for docstrings; those of a sum or an f-string as one."""
    tree = ast.parse(source)
    parts = set(_docstrings(tree))
    for node in ast.walk(tree):  # outer expressions come first
        if node in parts:
            continue
        text = _text(node)
        if text is not None:
            parts.update(ast.walk(node))
            yield text


def texts_of_cpp(source):
    """Yields the texts of each statement as one, with {} for what stands between them."""
    source = re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)
    for statement in re.split(r";\s*\n", source):
        joined = re.sub(r'"\s*\n?\s*"', "", statement)
        found = _LITERAL.findall(joined)
        if found:
            yield "{}".join(found).replace(r"\n", "\n").replace(r"\"", '"')


@functools.cache
def all_texts():
    """The texts of all sources, as pairs of a path and a text."""
    found = []
    for folder, ending, texts_of in (
        ("easyddl", "*.py", texts_of_python),
        ("ext", "*.cpp", texts_of_cpp),
        ("ext", "*.h", texts_of_cpp),
    ):
        for path in sorted((ROOT / folder).rglob(ending)):
            name = str(path.relative_to(ROOT))
            found += [(name, text) for text in texts_of(path.read_text())]
    return found


def gives_advice(text):
    """Returns whether a text is a message with advice."""
    return len(text.split()) >= WORDS and ADVICE.search(text) is not None


def messages_with_advice():
    """The paths and the texts of the messages that need a row."""
    return [
        (path, text)
        for path, text in all_texts()
        if gives_advice(text) and not path.startswith(tuple(ELSEWHERE))
    ]


def _plain(text):
    return re.sub(r"\s+", " ", re.sub(r"[`*\\]", "", text))


def quotations(page):
    """The quotations in the first columns of a page's tables, as they are."""
    rows = [line for line in page.splitlines() if line.startswith("|")]
    first = [re.split(r"(?<!\\)\|", row)[1] for row in rows]
    return [quoted for cell in first for quoted in re.findall(r"\*([^*]+)\*", cell)]


def matches(quotation, text):
    """Returns whether a text contains a quotation, whose three dots stand for anything."""
    parts = [re.escape(part.strip()) for part in _plain(quotation).split("...")]
    return re.search(".*".join(parts), _plain(text)) is not None


def without_row(page):
    """The messages with advice that no row of a page quotes."""
    quoted = quotations(page)
    return [
        f"{path}: {text}"
        for path, text in messages_with_advice()
        if not any(matches(each, text) for each in quoted)
    ]


def test_each_message_with_advice_has_a_row():
    missing = without_row(PAGE.read_text())
    assert not missing, "tutorials/troubleshooting.md has no row for:\n" + "\n".join(missing)


def test_each_quotation_is_of_a_message():
    texts = [text for _, text in all_texts()]
    quoted = quotations(PAGE.read_text())
    unknown = [each for each in quoted if not any(matches(each, text) for text in texts)]
    assert quoted and not unknown, "No message contains:\n" + "\n".join(unknown)


def test_quotations_are_long_enough_to_mean_one_message():
    short = [each for each in quotations(PAGE.read_text()) if len(each.replace("...", "")) < QUOTED]
    assert not short


@pytest.mark.parametrize("path", ELSEWHERE)
def test_what_is_left_out_exists(path):
    assert (ROOT / path).exists()


def test_messages_are_found_in_python_and_in_cpp():
    folders = {path.partition("/")[0] for path, _ in messages_with_advice()}
    assert folders == {"easyddl", "ext"}
    assert len(without_row("")) == len(messages_with_advice()) > 100


SAMPLE = '''
"""Pass nothing."""
def f(x):
    """Use it: pass nothing at all to this function."""
    raise ValueError(f"`x` must be a number of {x}. Pass an integer, " + NAME + f", or {x}.")
'''


def test_a_message_of_python_is_one_text():
    found = [text for text in texts_of_python(SAMPLE) if gives_advice(text)]
    assert found == ["`x` must be a number of {}. Pass an integer, {}, or {}."]
    assert matches("must be a number of ... Pass an integer", found[0])
    assert not matches("must be a number of ... Pass a float", found[0])


def test_a_message_of_cpp_is_one_text():
    source = 'throw Error("The rank " + name + " is "\n  "late. Start it\\n"\n  "earlier.");\n'
    assert list(texts_of_cpp(source)) == ["The rank {} is late. Start it\nearlier."]


if __name__ == "__main__":
    print("\n".join(each.replace("\n", " / ") for each in without_row(PAGE.read_text())))
