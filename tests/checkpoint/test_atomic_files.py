"""Whatever is killed, at any point, the last whole state is there."""

import contextlib
import errno
import glob
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

import atomic_writer
import pytest

from easyddl.checkpoint import atomic_files

WRITER = pathlib.Path(__file__).with_name("atomic_writer.py")
KINDS = ["file", "directory", "double"]


def path_of(kind, folder):
    return str(folder / ("model.keras" if kind == "file" else "backup"))


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
            if kind == "file":
                atomic_files.write_entries(path, lambda temporary: fail(pathlib.Path(temporary)))
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


def test_a_file_system_that_flushes_no_directory(tmp_path, monkeypatch):
    flush = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    atomic_files.write_entries(str(tmp_path / "m.keras"), lambda path: open(path, "w").close())
    atomic_files.Generations(tmp_path / "backup").add(lambda folder: None)
    assert sorted(os.listdir(tmp_path)) == ["backup", "m.keras"]


def test_a_backup_that_cannot_be_removed_yet(tmp_path, monkeypatch):
    """As on NFS while another process reads it."""
    states = atomic_files.Generations(tmp_path)
    for number in range(3):
        states.add(lambda folder, n=number: atomic_writer.fill(folder / "weights", n, 1))
        monkeypatch.setattr(os, "rmdir", refuse_to_remove)
    assert atomic_writer.content(states.find()[0] / "weights") == 2
    monkeypatch.undo()
    states.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["backup-3"]


def refuse_to_remove(*arguments, **keywords):
    raise OSError(errno.ENOTEMPTY, "Directory not empty")


def test_a_lock_of_another_user_that_cannot_be_removed(tmp_path, monkeypatch):
    def refuse(path, **keywords):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refuse)
    atomic_files.write_entries(str(tmp_path / "m.keras"), lambda path: open(path, "w").close())
    assert (tmp_path / "m.keras").exists()


def leave(folder, name):
    """Leaves what a process leaves that is killed while it writes a file. Returns its directory."""
    (folder / f".lock-{name}").touch()
    scratch = folder / f".new-{name}-abcd_123"
    scratch.mkdir()
    (scratch / name).write_text("a part")
    return scratch


def test_leftovers_of_files_with_fields(tmp_path):
    (tmp_path / "run-3").mkdir()
    (tmp_path / "run-3" / "model-07.keras").write_text("")
    mine = [leave(tmp_path / "run-3", f"model-{number}.keras") for number in ("07", "12")]
    others = [leave(tmp_path / "run-3", "other.keras"), leave(tmp_path, "model-07.keras")]
    atomic_files.remove_leftovers(str(tmp_path / "run-{epoch}" / "model-{epoch:02d}.keras"))
    assert not any(scratch.exists() for scratch in mine)
    assert all(scratch.exists() for scratch in others)
    names = sorted(os.listdir(tmp_path / "run-3"))
    assert names == [".lock-other.keras", ".new-other.keras-abcd_123", "model-07.keras"]


def test_leftovers_of_files_with_long_names(tmp_path):
    name, end = "x" * 40, "y" * 40
    scratch = leave(tmp_path, f"{name}-7-{end}"[:60])
    atomic_files.remove_leftovers(str(tmp_path / (name + "-{epoch}-" + end)))
    assert not scratch.exists()


def write_directory(path, number):
    """Writes a directory of two files that hold a number, one of them in a directory in it."""

    def write(temporary):
        folder = pathlib.Path(temporary)
        (folder / "inner").mkdir(parents=True)
        atomic_writer.fill(folder / "weights", number, 1)
        atomic_writer.fill(folder / "inner" / "state", number, 1)

    atomic_files.write_entries(str(path), write)


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
        write_directory(path, 2)  # it removes what is left
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
        atomic_files.write_entries(str(path), write_faster)

    def write_faster(temporary):
        os.mkdir(temporary)
        atomic_writer.fill(pathlib.Path(temporary) / "weights", 2, 1)

    atomic_files.write_entries(str(path), write)
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
            write_directory(path, 1)
        finally:
            os._exit(0)
    os.close(begun[1])  # so that the next line does not wait for a process that has ended
    assert os.read(begun[0], 1) == b"."  # the first file is there, and the other is not
    second = os.fork()
    if second == 0:
        try:
            write_directory(path, 2)
        finally:
            os._exit(0)
    time.sleep(0.3)
    os.write(go_on[1], b"...")
    for each in (child, second):
        os.waitpid(each, 0)
    assert number_in(path) == 2
    assert_no_leftovers(tmp_path)


@pytest.mark.parametrize("name", ["m", "m.v1"])
def test_files_that_belong_together(name, tmp_path):
    """Shards, and the file that names them, which comes last."""
    moved = []
    names = [f"{name}_00000.weights.h5", f"{name}_00001.weights.h5", f"{name}.weights.json"]

    def write(temporary):
        for name in reversed(names):
            pathlib.Path(temporary).with_name(name).write_text(name)

    replace = os.replace

    def note(source, target):
        moved.append(os.path.basename(target))
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", note)
        atomic_files.write_entries(str(tmp_path / f"{name}.weights.h5"), write)
    assert moved == names
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_a_save_removes_the_leftovers_of_killed_processes_alone(tmp_path):
    """While another process or thread writes the same file, its directory stays."""
    path, name = str(tmp_path / "m.keras"), "m.keras"
    left = [leave(tmp_path, name), leave(tmp_path, "m.keras-2")]

    def write(temporary):
        assert atomic_files.is_temporary(temporary)
        child = os.fork()
        if child == 0:
            atomic_files.write_entries(path, lambda to: atomic_writer.fill(to, 2, 1))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread = threading.Thread(
            target=atomic_files.write_entries, args=(path, lambda to: atomic_writer.fill(to, 3, 1))
        )
        thread.start()
        thread.join()
        assert atomic_writer.content(path) == 3
        atomic_writer.fill(temporary, 1, 1)

    atomic_files.write_entries(path, write)
    assert atomic_writer.content(path) == 1
    assert [scratch.exists() for scratch in left] == [False, True]
    assert sorted(os.listdir(tmp_path)) == [".lock-m.keras-2", ".new-m.keras-2-abcd_123", name]
    assert not atomic_files.is_temporary(path)


def test_a_new_file_keeps_owner_permissions_and_attributes(tmp_path):
    path = tmp_path / "m.keras"
    path.touch()
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 1234, 2345)
    with contextlib.suppress(OSError):  # some file systems have no attributes
        os.setxattr(path, "user.note", b"mine")
    os.utime(path, (0, 0))
    before, attributes = path.stat(), os.listxattr(path)
    atomic_writer.write(atomic_files, "file", str(path), 1, pieces=1)
    after = path.stat()
    assert atomic_writer.content(path) == 1
    assert after.st_ino != before.st_ino and after.st_mtime > 0
    for name in ("st_mode", "st_uid", "st_gid"):
        assert getattr(after, name) == getattr(before, name)
    assert os.listxattr(path) == attributes


def test_links_and_files_in_a_directory_keep_what_they_are(tmp_path):
    """The files of a directory are replaced like a single file."""
    (tmp_path / "model").mkdir(mode=0o750)
    (tmp_path / "elsewhere").touch()
    (tmp_path / "model" / "weights").symlink_to("../elsewhere")
    (tmp_path / "model" / "inner").mkdir()
    (tmp_path / "model" / "inner" / "state").touch(mode=0o600)
    os.link(tmp_path / "model" / "inner" / "state", tmp_path / "other")
    write_directory(tmp_path / "model", 1)
    assert number_in(tmp_path / "model") == 1
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "model" / "weights").is_symlink()
    assert atomic_writer.content(tmp_path / "elsewhere") == 1
    assert atomic_writer.content(tmp_path / "other") == 1
    assert_no_leftovers(tmp_path)


def test_a_link_to_a_file_with_another_name(tmp_path):
    """Keras chooses the format by the name in the path."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "best.keras").symlink_to("blobs/5f3a")
    for number in "12":
        atomic_files.write_entries(
            str(tmp_path / "best.keras"),
            lambda path: pathlib.Path(path).write_text(pathlib.Path(path).name + number),  # noqa: B023
        )
        assert (tmp_path / "best.keras").is_symlink()
        assert (tmp_path / "blobs" / "5f3a").read_text() == f"best.keras{number}"
    assert_no_leftovers(tmp_path / "blobs")


def without_rights(path):
    """Runs the writer as a user without the rights of root."""
    line = [sys.executable, "-S", "-E", str(WRITER), "file", path, "999"]
    if os.getuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("needs setpriv, because root may write everywhere")
        line = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *line]
    return subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_file_in_a_directory_that_cannot_be_written(tmp_path):
    path = tmp_path / "folder" / "m.keras"
    path.parent.mkdir()
    atomic_writer.fill(path, 1, 2)
    path.parent.chmod(0o555)
    try:
        done = without_rights(str(path))
        assert done.returncode == 0 and atomic_writer.content(path) == 2, done.stdout
        done = without_rights(str(path.with_name("new.keras")))
    finally:
        path.parent.chmod(0o755)
    assert f"Permission denied: '{path.parent}/new.keras'" in done.stdout, done.stdout
    assert os.listdir(path.parent) == ["m.keras"]


def test_a_file_that_cannot_be_written_stays(tmp_path):
    path = tmp_path / "m.keras"
    atomic_writer.fill(path, 1, 1)
    path.chmod(0o444)
    done = without_rights(str(path))
    assert f"Permission denied: '{path}'" in done.stdout, done.stdout
    assert atomic_writer.content(path) == 1


def test_paths_that_a_plain_write_refuses(tmp_path):
    (tmp_path / "loop.keras").symlink_to("loop.keras")
    for name, number in (
        ("loop.keras", errno.ELOOP),
        ("missing/m.keras", errno.ENOENT),
        ("missing/../m.keras", errno.ENOENT),
        ("m" * 256, errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError) as raised:
            atomic_writer.write(atomic_files, "file", str(tmp_path / name), 1, pieces=1)
        assert raised.value.errno == number
    assert os.listdir(tmp_path) == ["loop.keras"]
    atomic_writer.write(atomic_files, "file", str(tmp_path / ("m" * 255)), 1, pieces=1)
    assert_no_leftovers(tmp_path)


def test_a_writer_may_make_the_directory(tmp_path):
    def write(temporary):
        os.makedirs(os.path.dirname(temporary))
        atomic_writer.fill(temporary, 1, 1)

    atomic_files.write_entries(str(tmp_path / "new" / "folder" / "m.h5"), write)
    assert atomic_writer.content(tmp_path / "new" / "folder" / "m.h5") == 1
    assert_no_leftovers(tmp_path)


def test_a_disk_with_room_for_one_copy(tmp_path, monkeypatch):
    """The new version is written elsewhere, and the old one gives its room."""
    path, free = str(tmp_path / "m.keras"), atomic_files._free
    atomic_writer.fill(path, 1, 1)
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")  # another file system
    monkeypatch.setattr(
        atomic_files, "_free", lambda at: 0 if at.startswith(str(tmp_path)) else free(at)
    )
    atomic_files.write_entries(path, lambda to: atomic_writer.fill(to, 2, 1), size=1)
    assert atomic_writer.content(path) == 2
    with pytest.raises(OSError, match="1048576 bytes needed"):
        atomic_files.write_entries(path, lambda to: atomic_writer.fill(to, 3, 2), size=1)
    assert atomic_writer.content(path) == 2
    with pytest.raises(OSError, match="2097152 bytes needed"):
        atomic_files.write_entries(str(tmp_path / "folder"), fill_folder, size=1)
    assert os.listdir(tmp_path) == ["m.keras"]


def fill_folder(path):
    os.mkdir(path)
    for name in "ab":
        atomic_writer.fill(os.path.join(path, name), 1, 1)


@pytest.mark.parametrize(
    "act",
    [(os, "replace"), (tempfile, "mkdtemp"), (atomic_files.fcntl, "fcntl"), (os, "unlink")],
)
def test_an_error_of_a_signal_handler_is_not_one_of_the_system(act, tmp_path, monkeypatch):
    def time_is_over(number, frame):
        raise TimeoutError(errno.ETIMEDOUT, "the time is over")

    def interrupted(*arguments, **keywords):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, time_is_over)
    try:
        with monkeypatch.context() as change, pytest.raises(TimeoutError, match="time is over"):
            change.setattr(*act, interrupted)
            atomic_files.write_entries(str(tmp_path / "m.keras"), lambda to: open(to, "w").close())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (tmp_path / "m.keras").exists() == (act == (os, "unlink"))  # this one comes last


def test_an_interrupt_at_the_end_of_a_save_leaves_no_lock(tmp_path, monkeypatch):
    """The next save would wait for it without end."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    # pytest keeps the error, and with it all variables of the save
    with monkeypatch.context() as change, pytest.raises(KeyboardInterrupt):
        change.setattr(glob, "glob", interrupted)
        atomic_files.write_entries(str(tmp_path / "m.keras"), lambda to: open(to, "w").close())
    opened = map(os.path.realpath, pathlib.Path("/proc/self/fd").iterdir())
    assert not [path for path in opened if path.startswith(str(tmp_path))]


def test_writers_take_turns_on_a_disk_with_little_room(tmp_path):
    path, free = str(tmp_path / "m.keras"), atomic_files._free(tmp_path)
    begun = os.pipe()

    def write(temporary):
        os.write(begun[1], b".")
        time.sleep(0.2)
        assert os.listdir(tmp_path).count("m.keras") == 0
        assert sum(name.startswith(".new-") for name in os.listdir(tmp_path)) == 1
        atomic_writer.fill(temporary, 1, 1)

    child = os.fork()
    if child == 0:
        try:
            atomic_files.write_entries(path, write, size=free // 2, writers=3)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(begun[0], 1) == b"."
    atomic_files.write_entries(
        path, lambda to: atomic_writer.fill(to, 2, 1), size=free // 2, writers=3
    )
    assert os.waitpid(child, 0)[1] == 0
    assert atomic_writer.content(path) == 2


@pytest.mark.parametrize("wrong", ["gs://bucket/model.keras", "", None, b"model.keras", 3])
def test_paths_that_are_none(wrong):
    with pytest.raises(ValueError, match="`filepath` must be a path on a local"):
        atomic_files.require_local("filepath", wrong)
