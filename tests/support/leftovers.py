"""What a run of the tests leaves on this machine: processes, files and network namespaces.

Tests end jobs in every way there is, also by SIGKILL, and nothing of theirs may stay.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

# The variable that all processes of a run inherit: the id of the run's first process.
OWNER = "EASYDDL_TEST_OWNER"

# In /dev/shm and the temporary folder. Files that MPI leaves of a rank that is killed in MPI_Init
# are not easyddl's. It removes them later, and tests of their own look for them.
_NAMES = re.compile(r"easyddl|memfd|sem\.|psm_")
_GRACE = 20  # seconds in which what has been killed disappears


class Leftovers:
    """Compares this machine at the end of a run with what it was at the start."""

    def __init__(self):
        self._before = _files()

    def find(self):
        """Returns the descriptions of what is left after a while, a list of strings."""
        limit = time.monotonic() + _GRACE
        while found := self._find():
            if time.monotonic() > limit:
                break
            time.sleep(0.2)
        return found

    def _find(self):
        new = _files() - self._before
        in_use = _in_use() if new else set()
        files = [f"file {path}" for path in sorted(new - in_use)]
        return files + _processes() + _namespaces()


def assert_gone(pids, seconds=15):
    """Asserts that processes end within some seconds."""
    limit = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < limit, f"some of {pids} still run"
        time.sleep(0.05)


def is_running(pid):
    """Whether a process runs. A zombie does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _files():
    found = set()
    for folder in {tempfile.gettempdir(), "/tmp", "/dev/shm"}:
        with os.scandir(folder) as entries:
            found |= {entry.path for entry in entries if _NAMES.match(entry.name)}
    return found


def _in_use():
    """Returns the paths that a process has mapped or open, which may belong to another run."""
    found = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(process / "fd"):
                with contextlib.suppress(OSError):  # it is closed by now
                    found.add(os.readlink(process / "fd" / descriptor))
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text(errors="replace")
            found |= set(re.findall(r" (/\S+)$", maps, re.MULTILINE))
    return found


def _processes():
    """Returns the processes that have inherited the environment of this run."""
    mark = f"{OWNER}={os.getpid()}\0".encode()
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes()
            if mark in (process / "environ").read_bytes() and line:
                text = line.replace(b"\0", b" ").decode(errors="replace")
                found.append(f"process {process.name}: {text}")
    return found


def _namespaces():
    """Returns the network namespaces of test processes that have ended."""
    if shutil.which("ip") is None:
        return []
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    names = re.findall(r"^(easyddl-(\d+)-\S+)", listed, re.MULTILINE)
    return [
        f"network namespace {name}"
        for name, owner in names
        if not pathlib.Path("/proc", owner).exists()
    ]
