"""Processes that have imported Keras, and fork the ranks of a job whose test looks at no start.

Importing Keras takes each process seconds. `server.py` imports it once, computes nothing, opens no
device, and forks a process for each request. `rank.py` is what mpirun starts instead of Python: it
sends its arguments, its environment and its descriptors to a server, forwards signals to the
process that the server forks, and ends as that process ends.

A process that a fork server makes differs in this from one that starts by itself:

- Python does not start, and Keras is not imported. What looks at either must not use a server.
- The server is its parent. Processes that mpirun starts are siblings of each other, and so are
  these.

Ranks of even and of odd numbers come from different servers. Their hashes of strings and their
addresses differ, as those of separate processes do, so that a rank which depends on the order of a
set is found.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import builds

HERE = pathlib.Path(__file__).parent
SERVERS = 2  # of one environment
START_LIMIT = 120  # seconds

# The folder of the servers' sockets, and the process with which they end: of the whole test run,
# whose workers share them.
FOLDER, OWNER = "EASYDDL_TEST_FORK_SERVERS", "EASYDDL_TEST_FORK_OWNER"

# Variables that differ from test to test and that no import reads. All others tell servers apart.
_UNREAD = ("OLDPWD", "PATH", "PWD", "SHLVL", "_")
_UNREAD_PREFIXES = ("EASYDDL_", "PYTEST_")
_READ = "EASYDDL_TEST_HIDDEN"  # by tests/lean/sitecustomize.py

_started = []  # of this process; they end with the owner


def begin():
    """Makes the folder of this test run's servers. Called once, before the run has workers.

    Returns:
        `tempfile.TemporaryDirectory`, to be kept as long as servers are used.
    """
    folder = tempfile.TemporaryDirectory(prefix="easyddl-forks-")
    os.environ.update({FOLDER: folder.name, OWNER: str(os.getpid())})
    return folder


def command(environment):
    """The arguments of Python that start a script by the servers of an environment.

    Args:
        environment: Dictionary. The whole environment of the script's process.

    Returns:
        List of strings, which the script's path and its arguments follow.
    """
    sockets = [_socket_of(environment, number) for number in range(SERVERS)]
    return ["-I", "-S", str(HERE / "rank.py"), ",".join(sockets)]


def _socket_of(environment, number):
    """The path of a server's socket. The server is started if there is none."""
    read = {name: value for name, value in environment.items() if _is_read(name)}
    key = hashlib.sha256(json.dumps(sorted(read.items())).encode()).hexdigest()[:12]
    path = pathlib.Path(os.environ[FOLDER], f"{key}-{number}")
    with builds.locked(path.with_suffix(".lock")):
        if not path.exists():
            _start(path, environment)
    return str(path)


def _is_read(name):
    unread = name in _UNREAD or name.startswith(_UNREAD_PREFIXES)
    return name == _READ or not unread


def _start(path, environment):
    log = path.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(path), os.environ[OWNER]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _started.append(process)
    limit = time.monotonic() + START_LIMIT
    while not path.exists():
        if process.poll() is not None or time.monotonic() > limit:
            process.kill()
            raise RuntimeError(f"A fork server did not start. It printed:\n{log.read_text()}")
        time.sleep(0.02)
