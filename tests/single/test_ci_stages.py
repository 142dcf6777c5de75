"""Which stages of `.ci/run` are left out: those that have passed with the same inputs."""

import datetime
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STAGES = ROOT / ".ci" / "stages.py"
GUIDE = ROOT / "tutorials" / "contribute.md"
DAY = datetime.timedelta(days=1)

spec = importlib.util.spec_from_file_location("stages", STAGES)
stages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stages)


class Clone:
    """A repository that has a file at each path that a stage depends on."""

    def __init__(self, root):
        self.root = root
        for path in {path for stage in stages.INPUTS for path in stages.inputs_of(stage)}:
            file = (
                root / path if pathlib.Path(path).suffix or "/run" in path else root / path / "file"
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{path}\n")
        (root / ".ci" / "stages.py").write_text(STAGES.read_text())
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        line = ["git", "-C", self.root, *who, *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "a change", "--allow-empty")

    def run(self, *arguments):
        line = [sys.executable, self.root / ".ci" / "stages.py", *arguments]
        return subprocess.run(line, capture_output=True, text=True)

    def snapshot(self):
        done = self.run("snapshot")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def check(self, stage):
        """Whether a stage can be left out, and what is said of it."""
        done = self.run("check", stage, self.snapshot())
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
        return done.returncode == 0, done.stdout

    def passes(self, stage, ago=None):
        """Records that a stage has passed, some time ago."""
        done = self.run("record", stage, self.snapshot())
        assert done.returncode == 0, done.stderr
        if ago is not None:
            path = self.root / stages.RECORD
            then = (datetime.datetime.now(datetime.timezone.utc) - ago).isoformat()
            path.write_text(re.sub(rf"({stage} \w+) \S+", rf"\1 {then}", path.read_text()))

    def change(self, path):
        file = self.root / path
        (file / "file" if file.is_dir() else file).write_text("changed\n")


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_a_stage_without_a_record_runs(clone):
    assert clone.check("site") == (False, ".ci/passed has no record of it\n")


def test_a_stage_that_has_passed_is_left_out_and_why_is_said(clone):
    clone.passes("site")
    left_out, why = clone.check("site")
    assert left_out and "with the same inputs" in why and " tutorials " in why
    assert not clone.check("oldest")[0]


def test_a_stage_runs_after_a_change_of_its_inputs_alone(clone, monkeypatch):
    monkeypatch.setattr(stages, "ROOT", clone.root)
    for stage in stages.INPUTS:
        stages.record(stage, "HEAD")
    for changed in sorted({path for stage in stages.INPUTS for path in stages.inputs_of(stage)}):
        clone.change(changed)
        snapshot = stages.snapshot()
        for stage in stages.INPUTS:
            left_out, why = stages.examine(stage, snapshot)
            depends = any(f"{changed}/".startswith(f"{p}/") for p in stages.inputs_of(stage))
            assert left_out != depends, (stage, changed, why)
            assert left_out or "its inputs are not those" in why
        clone.git("checkout", "--quiet", ".")


def test_a_commit_of_what_has_passed_changes_nothing(clone):
    clone.change("ext")
    (clone.root / "ext" / "new").write_text("a file that git does not know yet\n")
    clone.passes("release")
    clone.commit()
    assert clone.check("release")[0]


def test_a_file_that_is_removed_or_becomes_executable_has_a_stage_run(clone):
    (clone.root / "ext" / "other").touch()
    clone.passes("release")
    (clone.root / "ext" / "other").chmod(0o755)
    assert not clone.check("release")[0]
    clone.passes("release")
    (clone.root / "ext" / "other").unlink()
    assert not clone.check("release")[0]


def test_what_is_no_input_changes_nothing(clone):
    clone.passes("sanitizers")
    clone.change("easyddl")
    clone.change("README.md")
    clone.commit()
    assert clone.check("sanitizers")[0]


def test_a_record_counts_for_seven_days(clone):
    clone.passes("site", ago=7 * DAY - datetime.timedelta(minutes=5))
    assert clone.check("site")[0]
    clone.passes("site", ago=7 * DAY + datetime.timedelta(minutes=5))
    left_out, why = clone.check("site")
    assert not left_out and "counts for 7 days" in why
    clone.passes("site", ago=-DAY)  # a clock was wrong
    assert not clone.check("site")[0]


@pytest.mark.parametrize(
    "line",
    ["site", "site abc", "site abc yesterday", "site abc 2026-11-25T10:00:00", "<<<<<<< HEAD", ""],
)
def test_a_record_that_cannot_be_read_does_not_count(line, clone):
    clone.passes("site")
    path = clone.root / stages.RECORD
    path.write_text(f"{line}\n")
    assert not clone.check("site")[0]
    clone.passes("site")
    assert clone.check("site")[0]


@pytest.mark.parametrize("stage", ["tests", "lint"])
def test_tests_and_linters_are_never_left_out(stage, clone):
    clone.passes(stage)
    assert clone.check(stage) == (False, "it is never left out\n")


def test_a_snapshot_is_what_the_files_are(clone):
    assert clone.snapshot() == clone.git("rev-parse", "HEAD")
    clone.change("easyddl")
    (clone.root / "tests" / "new").write_text("new\n")
    before = clone.git("status", "--short")
    snapshot = clone.snapshot()
    assert clone.git("show", f"{snapshot}:tests/new") == "new"
    assert clone.git("show", f"{snapshot}:easyddl/file") == "changed"
    # Neither a branch nor what is staged has changed.
    assert clone.git("status", "--short") == before
    assert clone.git("rev-parse", f"{snapshot}^") == clone.git("rev-parse", "HEAD")


def test_every_input_exists():
    for stage in stages.INPUTS:
        for path in stages.inputs_of(stage):
            assert (ROOT / path).exists(), f"{stage}: {path}"


def test_the_guide_has_the_table_of_stages_and_paths():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", GUIDE.read_text(), re.MULTILINE)
    told = {stage: re.findall(r"`([^`]+)`", paths) for stage, paths in rows}
    done = subprocess.run(["bash", ROOT / ".ci" / "run", "inputs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = dict(line.split(": ") for line in done.stdout.splitlines())
    for stage, paths in read.items():
        depends_on = [path for path in paths.split() if path not in stages.RUNNER]
        assert told[stage] == depends_on, stage
    assert told.keys() == read.keys()


def test_every_stage_has_inputs():
    text = (ROOT / ".ci" / "run").read_text()
    listed = re.search(r"^all=\((.*?)\)", text, re.MULTILINE | re.DOTALL)[1].split()
    assert set(listed) == {*stages.INPUTS, "tests", "lint"}
    for stage in listed:
        assert re.search(rf"^stage_{stage}\(\)", text, re.MULTILINE), stage


def test_an_unknown_stage_is_an_error():
    done = subprocess.run(["bash", ROOT / ".ci" / "run", "site", "nothing"], capture_output=True)
    assert done.returncode == 2 and b"there is no stage nothing" in done.stderr
