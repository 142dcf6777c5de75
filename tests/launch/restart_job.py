"""A rank of a job with restarts, without Keras: `restart_job.py FAULT [FILE]`.

The first start fails after it has told of a backup, as `BackupAndRestore` does. The second ends.
"""

import os
import pathlib
import signal
import sys
import time

import without_keras  # noqa: F401  (first)

import easyddl as ddl
from easyddl.hosts import launched_process


def launcher():
    """The process of `easyddl run`."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"easyddl\0run" in line and os.fsencode(__file__) in line:
            return int(path.parent.name)
    raise LookupError


def main(fault, file=None):
    start = os.environ["EASYDDL_START"]
    print(f"rank {ddl.rank()} of {ddl.size()} in start {start}", flush=True)
    if start != "1":
        return
    if fault != "kill_before_a_backup" and ddl.is_root():
        launched_process.tell_supervisor("backup")
    ddl.barrier()
    if fault == "kill_the_launcher":
        signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(file).touch())
        ddl.barrier()
        if ddl.is_root():
            os.kill(launcher(), signal.SIGKILL)
    elif ddl.rank() == ddl.size() - 1:
        if fault == "error":
            raise ValueError("of the script")
        if fault != "wait":
            os.kill(os.getpid(), signal.SIGKILL)
    while True:
        ddl.barrier()
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
