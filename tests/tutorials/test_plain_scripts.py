"""Each tutorial's script is a plain Keras script, in tutorials/plain, plus four marked lines.

A plain script is the script without the lines that end in `# 1`, `# 2`, `# 4` or `# rank`; what was
indented below such a line moves to the left. In the line `# 3` easyddl's call becomes its first
argument. The number of ranks is left out of a text.
"""

import ast
import pathlib
import re

import mpi
import pytest

TUTORIALS = pathlib.Path(__file__).parents[2] / "tutorials"
NAMES = sorted(path.name for path in TUTORIALS.glob("*.py"))

REMOVED = re.compile(r"  # (?:1|2|4|rank)$")
REPLACED = re.compile(r"  # 3$")
# The first argument of a call of easyddl's that stands in place of it.
CALL = re.compile(r"ddl\.(?:scale_lr|LearningRateWarmup)\(([^,()]+)[^()]*\)")
RANKS = " with {ddl.size()} rank(s)"

# As on a host without network, and where easyddl is not installed.
ENVIRONMENT = {
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "",
    "NO_PROXY": "",
    "EASYDDL_TEST_HIDDEN": "easyddl jax matplotlib pandas torch",
}


def plain_of(text):
    """The plain script of a script with marked lines."""
    lines = []
    bodies = []  # the indentations of removed lines, whose bodies move to the left
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        while line and bodies and depth <= bodies[-1]:
            bodies.pop()
        if REMOVED.search(line):
            bodies.append(depth)
            continue
        if REPLACED.search(line):
            line = REPLACED.sub("", CALL.sub(r"\1", line))
        lines.append(line[4 * len(bodies) :].replace(RANKS, ""))
    return "\n".join(lines) + "\n"


def without_docstring(text):
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def run(name, folder, *arguments):
    env = {**ENVIRONMENT, "KERAS_HOME": str(folder)}
    script = TUTORIALS / "plain" / name
    done = mpi.run(1, script, *arguments, env=env, cwd=folder, ranks_by_mpirun=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_script_is_the_plain_one_plus_marked_lines(name):
    derived = plain_of((TUTORIALS / name).read_text())
    plain = (TUTORIALS / "plain" / name).read_text()
    assert without_docstring(derived) == without_docstring(plain)
    assert not re.search(r"\bddl\b", plain)


@pytest.mark.full
def test_plain_digits_reads_95_percent(tmp_path):
    output = run("digits.py", tmp_path)
    (accuracy,) = re.findall(r"^Held-out accuracy: (\S+)$", output, re.MULTILINE)
    assert float(accuracy) >= 0.95, output


@pytest.mark.full
def test_plain_mnist_cnn_runs(tmp_path):
    output = run("mnist_cnn.py", tmp_path, "--epochs", "1")
    assert re.search(r"^Held-out accuracy: \S+$", output, re.MULTILINE), output


@pytest.mark.full
def test_plain_large_batches_runs(tmp_path):
    output = run("large_batches.py", tmp_path, "--seeds", "1", "--epochs", "1")
    found = re.findall(r"^(.+?) +mean ", output, re.MULTILINE)
    assert found == ["small batches", "large batches, no warmup"], output
