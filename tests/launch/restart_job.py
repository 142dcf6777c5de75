"""A rank of a job with restarts, without Keras: `restart_job.py FAULT [FILE]`.

The first start tells of a backup, as `BackupAndRestore` does, and then fails. The second ends.
"""

import os
import pathlib
import signal
import sys
import time

import without_keras  # noqa: F401  (first)

import easyddl as ddl
from easyddl.checkpoint import atomic_files
from easyddl.checkpoint.start_claim import StartClaim
from easyddl.hosts import launched_process


def launcher(file):
    """The process of `easyddl run` that was given this file, as no other test's was."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"easyddl\0run" in line and os.fsencode(file) in line:
            return int(path.parent.name)
    raise LookupError


def end(fault, file):
    """Makes the last rank fail, or all ranks lose their launcher."""
    if fault == "kill_the_launcher":
        signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(file).touch())
        ddl.barrier()
        if ddl.is_root():
            os.kill(launcher(file), signal.SIGKILL)
    elif ddl.rank() == ddl.size() - 1:
        if fault == "error":
            raise ValueError("of the script")
        if fault.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)


def write(file, start):
    """Writes a file. In the first start, it replaces the file when a later one has written it."""

    def write_slowly(path):
        pathlib.Path(path).write_text(f"start {start}")
        if start == "1":
            print("writes in start 1", flush=True)
            while not file.exists():
                time.sleep(0.02)

    claim = StartClaim(file)
    claim.take()
    atomic_files.write_entries(file, write_slowly, held=claim.held)


def main(fault, file=None):
    start = os.environ["EASYDDL_START"]
    place = f"rank {ddl.rank()} of {ddl.size()} on {os.uname().nodename}"
    print(f"{place} in start {start}", flush=True)
    if fault != "kill_before_a_backup" and ddl.is_root():
        launched_process.tell_supervisor("backup")
    if fault == "write" and ddl.is_root():
        write(pathlib.Path(file), start)
    ddl.barrier()
    if start != "1":
        return
    print(f"{place} waits in start {start}", flush=True)
    end(fault, file)
    while True:
        ddl.barrier()
        time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
