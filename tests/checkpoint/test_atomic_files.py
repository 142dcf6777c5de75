"""Whatever is killed, at any point, the last whole state is there."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import atomic_writer
import pytest

from easyddl.checkpoint import atomic_files

WRITER = pathlib.Path(__file__).with_name("atomic_writer.py")
KINDS = ["file", "shared file", "directory", "double"]
WRITE = {"file": "write_file", "shared file": "write_entries"}


def path_of(kind, folder):
    return str(folder / ("model.keras" if kind in WRITE else "backup"))


@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_each_act_on_the_file_system(kind, tmp_path):
    path = path_of(kind, tmp_path)
    number = 0
    for fatal in range(1, 100):
        line = [sys.executable, "-S", "-E", str(WRITER), kind, path, str(fatal)]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True)
        assert done.returncode in (0, -signal.SIGKILL)
        found = atomic_writer.read(atomic_files, kind, path)
        assert found in (number, number + 1)
        assert_no_leftovers(tmp_path)
        if done.stdout:
            assert found == int(done.stdout)
        if done.returncode == 0:
            break
        number = found
    assert done.returncode == 0 and fatal > 3


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
            if kind in WRITE:
                write_file = getattr(atomic_files, WRITE[kind])
                write_file(path, lambda temporary: fail(pathlib.Path(temporary)))
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


def write_directory(path, number, writer=0):
    """Writes a directory of two files that hold a number, one of them in a directory in it."""

    def write(temporary):
        folder = pathlib.Path(temporary)
        (folder / "inner").mkdir(parents=True)
        atomic_writer.fill(folder / "weights", number, 1)
        atomic_writer.fill(folder / "inner" / "state", number, 1)

    atomic_files.write_entries(str(path), write, writer)


def number_in(path):
    numbers = {atomic_writer.content(path / name) for name in ("weights", "inner/state")}
    assert len(numbers) == 1, numbers
    return numbers.pop()


def test_a_directory_that_is_new_is_whole_or_absent_after_a_kill(tmp_path):
    for fatal in range(1, 200):
        path = tmp_path / str(fatal) / "model"
        path.parent.mkdir()
        child = os.fork()
        if child == 0:
            try:
                atomic_writer.die_at(fatal)
                write_directory(path, 1)
            finally:
                os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        assert (number_in(path) == 1) if path.exists() else killed
        write_directory(path, 2)  # the same process number: it removes what is left
        assert number_in(path) == 2
        assert_no_leftovers(path.parent)
        if not killed:
            break
    assert not killed and fatal > 8


def test_a_directory_keeps_the_files_of_others(tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    mine = [tmp_path / "model" / "notes", tmp_path / "model" / "inner" / "notes"]
    for path in mine:
        path.write_text("mine")
    for number in (1, 2):
        write_directory(tmp_path / "model", number)
        assert number_in(tmp_path / "model") == number
    assert [path.read_text() for path in mine] == ["mine"] * 2


@pytest.mark.parametrize("is_empty", [False, True])
def test_of_processes_that_write_a_new_directory_the_first_wins(is_empty, tmp_path):
    path = tmp_path / "model"
    if is_empty:
        path.mkdir()

    def write(temporary):
        os.mkdir(temporary)
        atomic_writer.fill(pathlib.Path(temporary) / "weights", 1, 1)
        atomic_files.write_entries(str(path), write_faster, writer=2)

    def write_faster(temporary):
        os.mkdir(temporary)
        atomic_writer.fill(pathlib.Path(temporary) / "weights", 2, 1)

    atomic_files.write_entries(str(path), write, writer=1)
    assert atomic_writer.content(path / "weights") == 2
    assert_no_leftovers(tmp_path)


def test_a_file_that_another_adds_is_no_directory_of_another(tmp_path):
    path = tmp_path / "model"
    path.mkdir()

    def write(temporary):
        os.mkdir(temporary)
        atomic_writer.fill(pathlib.Path(temporary) / "weights", 1, 1)
        (path / "log").write_text("of another")

    atomic_files.write_entries(str(path), write)
    assert atomic_writer.content(path / "weights") == 1
    assert (path / "log").read_text() == "of another"


def test_the_directory_of_one_process_is_never_mixed_with_that_of_another(tmp_path):
    """While one process replaces files, another one that has finished waits."""
    path = tmp_path / "model"
    write_directory(path, 9)
    begun, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        move = atomic_files._move

        def move_slowly(source, target):
            move(source, target)
            if source.endswith("weights"):
                return
            os.write(begun[1], b".")
            os.read(go_on[0], 1)

        try:
            atomic_files._move = move_slowly
            write_directory(path, 1, writer=1)
        finally:
            os._exit(0)
    os.close(begun[1])  # so that the next line does not wait for a process that has ended
    assert os.read(begun[0], 1) == b"."  # the first file is there, and the other is not
    second = os.fork()
    if second == 0:
        try:
            write_directory(path, 2, writer=2)
        finally:
            os._exit(0)
    time.sleep(0.3)
    os.write(go_on[1], b"...")
    for each in (child, second):
        os.waitpid(each, 0)
    assert number_in(path) == 2
    assert_no_leftovers(tmp_path)


def test_files_that_belong_together(tmp_path):
    """Shards, and the file that names them, which comes last."""
    moved = []

    def write(temporary):
        for name in ("m_00001.weights.h5", "m.weights.json", "m_00000.weights.h5"):
            pathlib.Path(temporary).with_name(name).write_text(name)

    replace = os.replace

    def note(source, target):
        moved.append(os.path.basename(target))
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", note)
        atomic_files.write_entries(str(tmp_path / "m.weights.h5"), write)
    names = ["m_00000.weights.h5", "m_00001.weights.h5", "m.weights.json"]
    assert moved == names
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_each_process_removes_its_own_leftovers(tmp_path):
    path = str(tmp_path / "m.keras")
    for writer in (0, 1, 12):
        (tmp_path / os.path.basename(atomic_files.scratch_of(path, writer))).mkdir()
        atomic_files.write_entries(path, lambda to: atomic_writer.fill(to, 1, 1), writer)
        assert os.listdir(tmp_path) == ["m.keras"]
    of_others = {atomic_files.scratch_of(path, writer) for writer in (0, 1, 12)}
    of_others.add(atomic_files.scratch_of(str(tmp_path / "1-m.keras")))
    assert len(of_others) == 4
    for scratch in of_others:
        assert atomic_files.is_temporary(os.path.join(scratch, "m.keras"))
        assert atomic_files.is_temporary(os.path.join(scratch, "m", "variables", "variables"))
    assert not atomic_files.is_temporary(path)


@pytest.mark.parametrize("wrong", ["gs://bucket/model.keras", "", None, b"model.keras", 3])
def test_paths_that_are_none(wrong):
    with pytest.raises(ValueError, match="`filepath` must be a path on a local"):
        atomic_files.require_local("filepath", wrong)
