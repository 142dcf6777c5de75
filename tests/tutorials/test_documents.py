"""README.md and the guides: every block has a language, and every command and example runs.

`documents.py` says what comments before a block mean, and which tests run blocks that take long.
"""

import argparse
import importlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import documents
import mpi
import network
import pytest
import run_document

pytestmark = pytest.mark.mpirun

RUN_DOCUMENT = pathlib.Path(run_document.__file__)
TRAIN = RUN_DOCUMENT.with_name("train.py")
LANGUAGES = (*documents.EXECUTED, *documents.DATA, *documents.SHOWN)
ALLOWED = {
    "not run": documents.REASONS.__contains__,
    "run": {"soak", "longest"}.__contains__,
    "shortened": re.compile("--").match,
    "command": re.compile(r"\w").match,
    "setup": run_document.SETUPS.__contains__,
}
CI = documents.ROOT / ".ci" / "run"
OF_SCRIPTS = ("matplotlib", "sklearn")
AS_ROOT = 'sudo() { "$@"; }\n'
TIMEOUT = 1200  # seconds

# The commands of this environment come before those of the host.
PATH = {"PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])}
OPTIMIZED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}


README = documents.ROOT / "README.md"


def each(paths, marks_of=lambda path: ()):
    params = [
        pytest.param(path, id=str(path.relative_to(documents.ROOT)), marks=marks_of(path))
        for path in paths
    ]
    return pytest.mark.parametrize("path", params)


def each_document():
    return each(documents.documents())


def each_document_with_blocks(mark=""):
    """Those that have blocks that tests with a marker run."""
    found = [
        path
        for path in documents.documents()
        if any(block.is_run and block.mark == mark for block in documents.blocks(path))
    ]
    if mark:
        return each(found, lambda path: getattr(pytest.mark, mark))
    return each(found, lambda path: pytest.mark.gate if path == README else ())


@pytest.mark.gate
@each_document()
def test_every_block_is_a_fence_with_a_language(path):
    blocks = [block for block in documents.blocks(path) if not block.is_directive]
    assert [(b.place, b.language) for b in blocks if b.language not in LANGUAGES] == []


@pytest.mark.gate
@each_document()
def test_comments_before_blocks_are_known(path):
    for block in documents.blocks(path):
        for name, value in block.markers.items():
            comment = f"{block.place}: {name}: {value}"
            assert block.language in documents.EXECUTED and name in ALLOWED, comment
            assert ALLOWED[name](value), comment


@pytest.mark.gate
@each_document()
def test_commands_for_an_environment_of_their_own_are_run_by_ci(path):
    called = re.sub(r"\s+", " ", CI.read_text())
    for block in documents.blocks(path):
        if name := block.markers.get("command"):
            document = path.relative_to(documents.ROOT)
            assert f'_command {document} "{name}"' in called, block.place


@pytest.mark.gate
@each_document()
def test_blocks_can_be_read(path):
    for block in documents.blocks(path):
        if block.language == "python":
            compile("\n" * block.line + block.code, block.place, "exec")
        elif block.language == "sh":
            check_shell(block)
        elif block.language in documents.DATA:
            check_data(block)


def check_shell(block):
    done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
    assert done.returncode == 0, f"{block.place}: {done.stderr}"
    scripts = [word for word in block.code.split() if word.startswith(("tests/", "tutorials/"))]
    for script in scripts:
        assert (documents.ROOT / script).exists(), f"{block.place}: there is no {script}"
    for line in block.code.splitlines():
        if line.startswith("easyddl "):
            check_options(*shlex.split(line, comments=True)[1:])


def check_options(name, *arguments):
    """Reads the options of a subcommand, which may belong to a block that is not run."""
    command = importlib.import_module(f"easyddl.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"easyddl {name}")
    command.add_arguments(parser)
    parser.parse_args(arguments)


def check_data(block):
    if block.language == "json":
        json.loads(block.code)
    elif block.language == "toml":
        pytest.importorskip("tomllib").loads(block.code)  # of Python 3.11
    else:
        list(pytest.importorskip("yaml").safe_load_all(block.code))


@each_document_with_blocks()
def test_blocks_run(path, tmp_path):
    run(path, "", tmp_path, lean=True)


@each_document_with_blocks("soak")
def test_blocks_that_take_long_run(path, tmp_path):
    run(path, "soak", tmp_path, lean=False)


@each_document_with_blocks("longest")
def test_blocks_that_take_longest_run(path, tmp_path):
    run(path, "longest", tmp_path, lean=False)


def run(path, mark, folder, lean):
    """Runs those blocks of a document that tests with a marker run, as `run_blocks` does."""
    run_blocks([block for block in documents.blocks(path) if block.mark == mark], folder, lean)


def run_blocks(blocks, folder, lean):
    """Runs blocks of a document in a folder that looks like a clone with a script in it.

    Args:
        blocks: List of blocks.
        folder: Path of the folder, which is empty.
        lean: Whether processes import no more than they need. Commands that select no backend
            then take that which is imported in the shortest time, and otherwise Keras's default.
    """
    if network.missing() is not None:
        blocks = [block for block in blocks if not block.needs_root]
    blocks = [block for block in blocks if block.is_run]
    if not blocks:
        pytest.skip("all blocks need root")
    if mpi.is_open_mpi():
        pytest.skip("Open MPI's mpirun needs more options than the guides pass")
    fill(folder)
    shown = needed_by(blocks) if lean else mpi.NOT_NEEDED
    own = mpi.environment(PATH, shown)
    shell = mpi.environment({**PATH, **(mpi.ANY_BACKEND if lean else OPTIMIZED)}, shown)
    plan = {
        "blocks": [as_step(block) for block in blocks],
        "shell": dict(shell.items() - own.items()),
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    done = mpi.run_command([sys.executable, str(RUN_DOCUMENT), str(path)], own, TIMEOUT, folder)
    print(done.stdout)  # shown if this fails, and by `pytest -rP`
    assert done.returncode == 0, done.stdout.rstrip().rpartition("\n")[2]


def fill(folder):
    shutil.copytree(documents.ROOT / "tutorials", folder / "tutorials")
    shutil.copy(TRAIN, folder)
    for name in ("ext", "setup.cfg", "tests"):
        (folder / name).symlink_to(documents.ROOT / name)


def needed_by(blocks):
    """The libraries that blocks, or the scripts that they start, import besides Keras."""
    code = "".join(block.code for block in blocks)
    return [name for name in mpi.NOT_NEEDED if name in OF_SCRIPTS or name in code]


def as_step(block):
    """What run_document.py needs to know of a block."""
    # A test that may run as root already does so.
    code = AS_ROOT + block.shortened if block.needs_root else block.shortened
    return {
        "path": str(block.path),
        "line": block.line,
        "language": block.language,
        "code": code,
        "setup": block.markers.get("setup"),
    }
