"""Errors of the command line name the option that was meant."""

import subprocess
import sys

import pytest

from easyddl import cli

MEANT = "Write `{}`, with two dashes"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["run", "-hostfile", "hosts", "python", "train.py"], "--hostfile"),
        (["run", "-tcp", "python", "train.py"], "--tcp"),
        (["run", "-np", "2", "-output=logs", "python", "train.py"], "--output"),
        (["scaling", "-plot", "scaling.png", "--", "python", "train.py"], "--plot"),
    ],
)
def test_an_option_with_one_dash_is_named_with_two(arguments, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert MEANT.format(meant) in capsys.readouterr().err


@pytest.mark.parametrize("unknown", ["-x", "-mode", "--accelerators"])
def test_an_option_that_does_not_exist_is_unknown(unknown, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", unknown, "python", "train.py"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"unrecognized arguments: {unknown}" in error
    assert "two dashes" not in error


def test_commands_run_without_docstrings():
    line = [sys.executable, "-OO", "-m", "easyddl", "--version"]
    assert subprocess.run(line, capture_output=True, check=True).stdout.startswith(b"easyddl ")
