"""Whatever is killed, at any point, the last whole state is there."""

import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import atomic_writer
import pytest

from easyddl.checkpoint import atomic_files

WRITER = pathlib.Path(__file__).with_name("atomic_writer.py")
KINDS = ["file", "directory", "double"]


def path_of(kind, folder):
    return str(folder / ("model.keras" if kind == "file" else "backup"))


def run_writer(kind, path, *fatal, wait=None):
    """Runs a writer until it ends, or kills it after some seconds; the number it told last."""
    line = [sys.executable, "-S", "-E", str(WRITER), kind, path, *map(str, fatal)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    if wait is not None:
        first = process.stdout.readline()
        time.sleep(wait)
        process.kill()
    told = process.communicate()[0].split()
    assert process.returncode in (0, -signal.SIGKILL)
    last = int(told[-1]) if told else int(first) if wait is not None else None
    return last, process.returncode == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_points(kind, tmp_path):
    path = path_of(kind, tmp_path)
    chance = random.Random(5)
    before = 0
    for _ in range(12):
        told, _ = run_writer(kind, path, wait=chance.uniform(0, 0.05))
        found = atomic_writer.read(atomic_files, kind, path)
        # What was told to be there is; the next one may be too.
        assert told > before and found in (told, told + 1)
        before = found
        assert_no_leftovers(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_each_act_on_the_file_system(kind, tmp_path):
    path = path_of(kind, tmp_path)
    number = 0
    for fatal in range(1, 100):
        told, ended = run_writer(kind, path, fatal)
        found = atomic_writer.read(atomic_files, kind, path)
        assert found in (number, number + 1)
        assert_no_leftovers(tmp_path)
        if told:
            assert found == told
        if ended:
            break
        number = found
    assert ended and fatal > 3


def assert_no_leftovers(folder):
    names = [path.name for path in folder.rglob("*")]
    assert not [name for name in names if name.startswith(".")], names


def test_an_error_leaves_what_was_there(tmp_path):
    def fail(path):
        atomic_writer.fill(path if path.suffix else path / "weights", 2, 1)
        raise OSError(errno.ENOSPC, "no space")

    for kind in KINDS:
        path = path_of(kind, tmp_path / kind)
        (tmp_path / kind).mkdir()
        atomic_writer.write(atomic_files, kind, path, 1, pieces=1)
        with pytest.raises(OSError, match="no space"):
            if kind == "file":
                atomic_files.write_file(path, lambda temporary: fail(pathlib.Path(temporary)))
            else:
                atomic_files.Generations(path).add(fail)
        assert_no_leftovers(tmp_path)
        assert atomic_writer.read(atomic_files, kind, path) == 1


def test_as_many_states_are_kept_as_asked_for(tmp_path):
    for keep in (1, 2, 3):
        states = atomic_files.Generations(tmp_path / str(keep), keep)
        for number in range(1, 13):  # past 9: numbers are no text
            states.add(lambda folder, n=number: atomic_writer.fill(folder / "weights", n, 1))
        found = [atomic_writer.content(path / "weights") for path in states.find()]
        assert found == [12, 11, 10][:keep]


def test_only_states_are_removed(tmp_path):
    states = atomic_files.Generations(tmp_path / "backup")
    states.add(lambda folder: None)
    notes = tmp_path / "backup" / "backup-notes"
    notes.write_text("mine")
    states.remove()
    assert os.listdir(tmp_path / "backup") == ["backup-notes"]
    notes.unlink()
    states.remove()
    assert os.listdir(tmp_path) == []
    states.remove()


def test_leftovers_of_files_with_fields(tmp_path):
    (tmp_path / "run-3").mkdir()
    others = ["run-3/model-07.keras", "run-3/.new-other.keras", ".new-model-07.keras"]
    mine = ["run-3/.new-model-07.keras", "run-3/.new-model-12.keras"]
    for name in (*mine, *others):
        (tmp_path / name).write_text("")
    atomic_files.remove_leftovers(str(tmp_path / "run-{epoch}" / "model-{epoch:02d}.keras"))
    assert [name for name in mine if (tmp_path / name).exists()] == []
    assert all((tmp_path / name).exists() for name in others)


@pytest.mark.parametrize("wrong", ["gs://bucket/model.keras", "", None, b"model.keras", 3])
def test_paths_that_are_none(wrong):
    with pytest.raises(ValueError, match="`filepath` must be a path on a local"):
        atomic_files.require_local("filepath", wrong)
