"""Files of an earlier start of a job, which replace none of a later one."""

import subprocess
import sys

import pytest

from easyddl.checkpoint import atomic_files, start_claim
from easyddl.checkpoint.start_claim import StartClaim


@pytest.fixture
def start_as(monkeypatch):
    """Makes this process a rank of a start."""

    def begin(job, number):
        monkeypatch.setenv("_EASYDDL_JOB", job)
        monkeypatch.setenv("EASYDDL_START", str(number))

    return begin


def save(claim, path, text):
    def write(temporary):
        with open(temporary, "w") as file:
            file.write(text)

    atomic_files.write_entries(path, write, held=claim.held)


@pytest.mark.parametrize("later", [("a", 2), ("b", 1)])
def test_an_earlier_start_replaces_nothing(later, start_as, tmp_path):
    path, folder = tmp_path / "m-{epoch}.keras", tmp_path / "backup"
    early, backups_claim = StartClaim(path), StartClaim(folder)
    start_as("a", 1)
    early.take()
    backups_claim.take()
    backups = atomic_files.Generations(folder, held=backups_claim.held)
    save(early, tmp_path / "m-1.keras", "early")
    backups.add(lambda new: (new / "number").write_text("1"))

    start_as(*later)
    for each in (path, folder):
        StartClaim(each).take()
    save(StartClaim(path), tmp_path / "m-1.keras", "late")

    start_as("a", 1)
    with pytest.raises(RuntimeError, match="names a later one"):
        save(early, tmp_path / "m-1.keras", "too late")
    for call in (lambda: backups.add(lambda new: None), backups.remove):
        with pytest.raises(RuntimeError, match="names a later one"):
            call()
    assert (tmp_path / "m-1.keras").read_text() == "late"
    assert [path.name for path in folder.iterdir()] == ["backup-1"]


def test_the_claim_of_a_name_that_begins_with_a_field_is_in_its_folder(start_as, tmp_path):
    start_as("a", 1)
    StartClaim(tmp_path / "{epoch}.keras").take()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "names",
    [
        ("m-{epoch}-a.keras", "m-{epoch}-b.keras"),
        ("x" * 60, "x" * 61),
        ("m-{epoch}-\udce9.keras", "m-{epoch}-\udcea.keras"),  # not UTF-8
    ],
)
def test_jobs_whose_files_begin_alike_take_nothing_from_each_other(names, start_as, tmp_path):
    claims = [StartClaim(tmp_path / name) for name in names]
    for job, claim in zip("ab", claims, strict=True):
        start_as(job, 1)
        claim.take()
    start_as("a", 1)
    save(claims[0], tmp_path / "m-1-a.keras", "mine")


def test_the_claim_lies_where_the_file_is_written(start_as, tmp_path, monkeypatch):
    claim = StartClaim("m.keras")
    monkeypatch.chdir(tmp_path)
    start_as("a", 1)
    claim.take()
    assert (tmp_path / ".start-m.keras").exists()


def test_a_start_that_was_late_takes_nothing(start_as, tmp_path):
    start_as("a", 2)
    StartClaim(tmp_path / "backup").take()
    start_as("a", 1)
    with pytest.raises(RuntimeError, match="Start 1 of this job writes no more"):
        StartClaim(tmp_path / "backup").take()


def test_a_later_start_and_another_job_take_over(start_as, tmp_path):
    for job, number in (("a", 1), ("a", 2), ("b", 1)):
        start_as(job, number)
        claim = StartClaim(tmp_path / "backup")
        claim.take()
        with claim.held():
            pass


def test_without_restarts_there_is_no_file(monkeypatch, tmp_path):
    monkeypatch.delenv("EASYDDL_START", raising=False)
    claim = StartClaim(tmp_path / "backup")
    claim.take()
    with claim.held():
        assert list(tmp_path.iterdir()) == []


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def test_a_frozen_start_is_not_waited_for_without_end(start_as, tmp_path, monkeypatch):
    monkeypatch.setattr(start_claim, "_LONGEST", 0.2)
    start_as("a", 2)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    line = [sys.executable, "-c", HOLD, tmp_path / ".start-backup"]
    with subprocess.Popen(line, **pipes) as frozen:
        frozen.stdout.readline()
        with pytest.raises(RuntimeError, match="Another start of this job has locked"):
            StartClaim(tmp_path / "backup").take()
        frozen.stdin.close()
