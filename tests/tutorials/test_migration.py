"""The scripts that the guides for users of other libraries translate.

A guide, such as tutorials/from_horovod.md, shows the difference of two scripts of
tutorials/migration. This file prints the differences:

    python tests/tutorials/test_migration.py
"""

import difflib
import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

TUTORIALS = pathlib.Path(__file__).parents[2] / "tutorials"
SCRIPTS = TUTORIALS / "migration"
NAMES = ("horovod", "ibm_ddl", "tf_distribute", "torch_ddp")
BACKENDS = {"torch_ddp": "torch"}
CHANCE = 0.1  # the accuracy of guessing


def difference(name):
    """The two whole scripts, as `diff -U 1000` shows them, without blanks at the ends of lines."""
    names = [f"{name}_before.py", f"{name}_after.py"]
    before, after = ((SCRIPTS / each).read_text().splitlines() for each in names)
    lines = difflib.unified_diff(before, after, *names, n=1000, lineterm="")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def diffs_of(guide):
    blocks = re.findall(r"^```diff\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if block.startswith("---")]


@pytest.mark.gate
@pytest.mark.parametrize("name", NAMES)
def test_the_guide_shows_the_difference_of_the_scripts(name):
    assert diffs_of(TUTORIALS / f"from_{name}.md") == [difference(name)]


@pytest.mark.gate
@pytest.mark.parametrize("name", NAMES)
def test_the_script_before_is_python(name):
    path = SCRIPTS / f"{name}_before.py"
    compile(path.read_text(), path, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_the_translated_script_trains_on_two_ranks(name, tmp_path):
    backend = BACKENDS.get(name, "tensorflow")
    mpi.require(backend)
    script = SCRIPTS / f"{name}_after.py"
    env = {"KERAS_BACKEND": backend}
    done = mpi.run(2, script, env=env, shown=["sklearn"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    # As if the ranks had trained alone, or their weights differed at the end.
    assert "easyddl: warning" not in done.stdout, done.stdout
    (accuracy,) = re.findall(r"^Held-out accuracy: (\S+)$", done.stdout, re.MULTILINE)
    assert float(accuracy) >= 9 * CHANCE, done.stdout


if __name__ == "__main__":
    print("\n".join(difference(name) for name in NAMES), end="")
