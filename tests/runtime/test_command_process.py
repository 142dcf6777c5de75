import os
import signal
import subprocess
import sys

import mpi
import pytest

from easyddl import cli
from easyddl.cli import info
from easyddl.runtime import command_process

# A module that Python imports before all others. It presses Ctrl-C when a module is imported.
SITECUSTOMIZE = """
import os, signal, sys

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
"""
# What pip makes of the entry point.
SCRIPT = "import sys\nfrom easyddl.cli import main\nsys.exit(main())\n"


@pytest.fixture(params=["script", "-m"])
def command(request, tmp_path):
    """The start of a command line that runs `easyddl`."""
    if request.param == "-m":
        return [sys.executable, "-m", "easyddl"]
    (tmp_path / "easyddl").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "easyddl")]


def run_interrupted(command, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = mpi.environment({"PYTHONPATH": path, "INTERRUPTED_IMPORT": module})
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", ["run", "bench"])
@pytest.mark.parametrize("module", ["easyddl.launch", "easyddl.cli.timeline"])
def test_ctrl_c_during_the_import_is_one_line(command, module, name, tmp_path):
    done = run_interrupted([*command, name], module, tmp_path)
    assert done.stderr == "easyddl: interrupted\n"
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")


def test_a_command_can_handle_ctrl_c_once_it_runs(monkeypatch):
    def find_handler(options):
        found.append(signal.getsignal(signal.SIGINT))
        return 0

    found = []
    monkeypatch.setattr(info, "run", find_handler)
    before = signal.signal(signal.SIGINT, command_process._exit)
    try:
        assert cli.main(["info"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [signal.default_int_handler]


def test_ctrl_c_in_a_script_raises_during_the_import(tmp_path):
    lines = ["try: import easyddl", "except KeyboardInterrupt: print('caught')"]
    done = run_interrupted([sys.executable, "-c", "\n".join(lines)], "easyddl.launch", tmp_path)
    assert (done.returncode, done.stdout) == (0, "caught\n"), done.stderr
