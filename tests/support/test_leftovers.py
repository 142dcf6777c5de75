"""The check at the end of a run of the tests finds what they leave."""

import os
import pathlib
import subprocess
import sys
import tempfile

import leftovers
import pytest


@pytest.fixture
def found(monkeypatch):
    """A function that returns what is left at once."""
    monkeypatch.setattr(leftovers, "_GRACE", 0)
    return leftovers.Leftovers().find


@pytest.mark.parametrize("folder", ["/dev/shm", tempfile.gettempdir()])
def test_a_file_that_nobody_uses_is_found(folder, found):
    path = pathlib.Path(folder, f"easyddl-test-{os.getpid()}")
    try:
        with path.open("w"):
            assert f"file {path}" not in found()
        assert f"file {path}" in found()
    finally:
        path.unlink()


def test_a_process_of_the_run_is_found(found):
    line = [sys.executable, "-c", "print(flush=True); input()"]
    environment = {**os.environ, leftovers.OWNER: str(os.getpid())}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(line, env=environment, **pipes) as process:
        process.stdout.read(1)
        assert any(text.startswith(f"process {process.pid}: ") for text in found())
        process.communicate(b"\n")
    assert not any(text.startswith(f"process {process.pid}: ") for text in found())
