"""The processes of this machine, as the kernel describes them in /proc."""

import dataclasses
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        id: Integer. The system gives it to another process some time after this one has ended.
        name: String. The name of its program, of up to 15 bytes.
        parent: Integer. The id of its parent.
        start: Integer. When it started, in the kernel's ticks since the boot.
    """

    id: int
    name: str
    parent: int
    start: int


def read(process):
    """Reads what the kernel tells of a process.

    Args:
        process: Integer. Its id.

    Returns:
        `Process`.

    Raises:
        OSError: If there is no such process, or this process may not see it.
    """
    text = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace")
    # A name may contain spaces and parentheses. proc_pid_stat(5) explains the fields.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(id=process, name=name, parent=int(fields[1]), start=int(fields[19]))


def ancestors():
    """Yields each ancestor of this process as a `Process`, the nearest first.

    It ends at an ancestor that this process may not see.
    """
    process = os.getppid()
    while process > 0:
        try:
            ancestor = read(process)
        except OSError:
            return
        yield ancestor
        process = ancestor.parent


def boot_id():
    """The name of this boot of the machine, the same in all its containers; empty if unknown."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
