#!/usr/bin/env python3
"""Tells when each stage of `.ci/run` passed last, and whether its inputs are still the same.

    python .ci/stages.py inputs [STAGE]         the paths that stages depend on
    python .ci/stages.py snapshot               a commit of the files as they are now
    python .ci/stages.py table COMMIT           when each stage passed last
    python .ci/stages.py record STAGE COMMIT    records that a stage has passed

The record is `.ci/passed`, which git tracks. It has the hash of the inputs of each stage, and the
time when the stage passed. The hash covers git's entries for the stage's paths, and thereby the
content of every file below them.
"""

import datetime
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = pathlib.Path(".ci", "passed")

# Every stage depends on the files that run it.
RUNNER = (".ci/run", ".ci/stages.py")

BUILD = ("ext", "setup.cfg", "pyproject.toml", "MANIFEST.in")  # the inputs of the engine's build
PACKAGE = ("easyddl", *BUILD)
RELEASE = (".ci/release.py", ".ci/release_tools.txt")
# The files with which tests start ranks.
JOBS = ("tests/support/mpi.py", "tests/support/builds.py")
WORLD = (  # the collectives, without Keras's models
    *(f"tests/support/{name}.py" for name in ("ranks", "steps", "line_errors")),
    *(f"tests/runtime/{name}.py" for name in ("world_job", "layout_checks")),
    "tests/runtime/shared_memory_checks.py",
    *(f"tests/collectives/{name}_checks.py" for name in ("collectives", "objects", "variables")),
    "tests/collectives/disagreement_checks.py",
)
DIGITS = "tutorials/digits.py"  # the script of stages that install the package and train

# The paths that each stage reads. The stages `tests` and `lint` are missing, because every run
# has them.
INPUTS = {
    "full": (*PACKAGE, "tests", "tutorials", "README.md"),
    "soak": (*PACKAGE, "tests", "tutorials", "README.md"),
    "longest": (*PACKAGE, "tests", "tutorials", "README.md"),
    "nightly": (*PACKAGE, "tests", ".ci/prerelease.py", ".ci/prerelease_failures"),
    "sanitizers": (*BUILD, *JOBS, "tests/conftest.py", "tests/engine"),
    "openmpi": (*PACKAGE, "tests"),
    "site": ("easyddl", "tutorials", "README.md", "setup.cfg"),
    "main": (*PACKAGE, DIGITS, "README.md"),
    "notebooks": (*PACKAGE, DIGITS, "tutorials/notebooks"),
    "extras": (*PACKAGE, DIGITS, "tests/engine/test_nccl_wheel.py"),
    "oldest": (*PACKAGE, DIGITS, "tests", "tutorials/benchmarks"),
    "newest": (*PACKAGE, "tests"),
    "prerelease": ("easyddl", DIGITS),
    "release": (*BUILD, *RELEASE, DIGITS, "tutorials/contribute.md"),
    "aarch64": (*BUILD, *RELEASE, ".ci/aarch64", *JOBS, "tests/engine", *WORLD),
    "install": (*BUILD, *RELEASE, DIGITS, "tutorials/install.md", "tutorials/notebooks/README.md"),
}


def main(command, *arguments):
    """Runs the command line."""
    if command == "inputs":
        for stage in arguments or INPUTS:
            print(f"{stage}: {' '.join(inputs_of(stage))}")
    elif command == "snapshot":
        print(snapshot())
    elif command == "table":
        print_table(*arguments)
    elif command == "record":
        record(*arguments)
    else:
        sys.exit(f"{__doc__}\nReceived: {command!r}")


def git(*arguments, **environment):
    """Returns the output of a git command."""
    done = subprocess.run(
        ["git", "-C", ROOT, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip()


def inputs_of(stage):
    """Returns the paths that a stage depends on."""
    return (*RUNNER, *INPUTS[stage])


def snapshot():
    """Returns a commit of all files as they are now: HEAD, or a new commit that is on no branch."""
    with tempfile.TemporaryDirectory() as folder:
        index = pathlib.Path(folder, "index")
        # Copy the index, so that git need not read unchanged files. Keep its time, because git
        # compares it with the times of files to find those that may have changed.
        shutil.copy2(git("rev-parse", "--path-format=absolute", "--git-path", "index"), index)
        git("add", "--all", GIT_INDEX_FILE=str(index))
        tree = git("write-tree", GIT_INDEX_FILE=str(index))
    if tree == git("rev-parse", "HEAD^{tree}"):
        return git("rev-parse", "HEAD")
    who = {"NAME": "ci", "EMAIL": "ci", "DATE": git("log", "-1", "--format=%cd", "--date=raw")}
    names = {f"GIT_{role}_{key}": who[key] for role in ("AUTHOR", "COMMITTER") for key in who}
    return git("commit-tree", tree, "-p", "HEAD", "-m", "Files as they are now", **names)


def hash_of(stage, commit):
    """Returns the hash of a stage's inputs in a commit."""
    paths = inputs_of(stage)
    entries = git("ls-tree", commit, "--", *paths)
    found = {entry.partition("\t")[2] for entry in entries.splitlines()}
    if missing := set(paths) - found:
        sys.exit(f"{stage} depends on paths that {commit} does not have: {sorted(missing)}")
    return hashlib.sha256(entries.encode()).hexdigest()


def read_record():
    """Returns the hash and the time of each stage that has passed.

    Lines of any other form are ignored.
    """
    found = {}
    path = ROOT / RECORD
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = line.split()
        try:
            stage, digest, passed = fields
            found[stage] = digest, datetime.datetime.fromisoformat(passed)
        except ValueError:
            continue
    return {stage: (digest, passed) for stage, (digest, passed) in found.items() if passed.tzinfo}


def print_table(commit):
    """Prints when each stage passed last, and whether with its inputs in a commit."""
    records = read_record()
    print("\n=== When each stage passed last")
    for stage in INPUTS:
        if stage not in records:
            print(f"{stage:<11} never")
            continue
        digest, passed = records[stage]
        is_same = digest == hash_of(stage, commit)
        inputs = "its inputs are the same" if is_same else "its inputs have changed since"
        print(f"{stage:<11} {passed:%Y-%m-%d %H:%M %Z}, {inputs}")


def record(stage, commit):
    """Records that a stage has passed now, with its inputs in a commit."""
    if stage not in INPUTS:
        return
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    records = {**read_record(), stage: (hash_of(stage, commit), now)}
    lines = [
        f"{name} {digest} {passed.isoformat()}\n" for name, (digest, passed) in records.items()
    ]
    (ROOT / RECORD).write_text("".join(sorted(lines)))


if __name__ == "__main__":
    main(*sys.argv[1:])
