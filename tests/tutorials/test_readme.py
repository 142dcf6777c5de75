"""Both sides of the diff in README.md are scripts that run."""

import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

README = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
ACCURACY = re.compile(r"^Accuracy on held-out images: (\S+)$", re.MULTILINE)
CHANCE = 0.1  # the accuracy of guessing


def side(signs):
    """Returns the lines of the diff that begin with one of the signs."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = [line for line in diff.splitlines() if not line or line[0] in signs]
    return "\n".join(line[1:] for line in lines) + "\n"


@pytest.mark.gate
@pytest.mark.parametrize(("signs", "ranks"), [(" -", 1), (" +", 2)], ids=["before", "after"])
def test_a_side_of_the_diff_trains_and_saves(signs, ranks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(side(signs))
    done = mpi.run(ranks, script, env=mpi.ANY_BACKEND, shown=["sklearn"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "easyddl: warning" not in done.stdout, done.stdout
    (accuracy,) = ACCURACY.findall(done.stdout)  # one rank prints
    assert float(accuracy) >= 8 * CHANCE, done.stdout
    assert (tmp_path / "digits.keras").exists()
