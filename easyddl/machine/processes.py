"""The processes of this host, read from /proc."""

import dataclasses
import os
import pathlib
import re
import selectors
import signal
import socket
import time

from easyddl.machine.kernel_file import read_text

# The signals by which a terminal, a scheduler or an ending session asks a process to end.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Those, and the others that a scheduler or a user may choose to announce an end. All of them end a
# process that does not handle them. SIGPIPE, SIGXFSZ and the signals of crashes, such as SIGABRT,
# tell a process what it has done itself. Nobody sends SIGSTKFLT.
SIGNALS = (
    *ENDING_SIGNALS,
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGALRM, signal.SIGXCPU),
    *(signal.SIGPWR, signal.SIGPROF, signal.SIGVTALRM, signal.SIGIO),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)

_SHELLS = ("ash", "bash", "dash", "ksh", "sh", "zsh")


@dataclasses.dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        id: Integer. The kernel may reuse the id after the process has ended.
        name: String. The name of the program, cut to 15 bytes.
        parent: Integer. The id of the parent process.
        start: Integer. The start time, in clock ticks since the boot.
    """

    id: int
    name: str
    parent: int
    start: int


def read(process):
    """Reads the kernel's information on a process.

    Args:
        process: Integer. The id of the process.

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


def handles(process, number):
    """Returns whether a process has a handler for a signal."""
    status = read_text(pathlib.Path(f"/proc/{process}/status"))  # empty if it has ended
    mask = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


def is_shell(process):
    """Returns whether a process is a shell. A script has its own name, and the shell's program."""
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe")) in _SHELLS
    except OSError:  # it has ended
        return False


def is_worker(process):
    """Returns whether a process is a worker of Python's multiprocessing, and no other program."""
    try:
        parent = read(process).parent
    except OSError:  # it has ended
        return False
    line, above = (read_text(pathlib.Path(f"/proc/{each}/cmdline")) for each in (process, parent))
    return line == above or "from multiprocessing" in line  # forked, or spawned


def ancestors():
    """Yields each ancestor of this process as a `Process`, the nearest first.

    Ends at an ancestor that this process may not see.
    """
    process = os.getppid()
    while process > 0:
        try:
            ancestor = read(process)
        except OSError:
            return
        yield ancestor
        process = ancestor.parent


def age():
    """Returns the number of seconds since this process started."""
    start = read(os.getpid()).start / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start


def wake_by_signals(stack):
    """Makes each signal with a handler wake a loop of events, until a stack of contexts ends.

    Args:
        stack: `contextlib.ExitStack`.

    Returns:
        The arguments of the selector's `register`. The data is a function that reads the event.
    """
    waked, waker = socket.socketpair()
    for end in (waked, waker):
        end.setblocking(False)
        stack.callback(end.close)
    previous = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    stack.callback(signal.set_wakeup_fd, previous)
    return waked, selectors.EVENT_READ, lambda: waked.recv(4096)


def end_of(status):
    """Returns how a process ended, such as `was killed by SIGKILL`.

    Args:
        status: Integer. As `subprocess` gives it: negative for a process that a signal killed.
    """
    return f"ended with status {status}" if status >= 0 else f"was killed by {name_of(-status)}"


def name_of(number):
    """Returns the name of a signal. Most real-time signals have no name of their own."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


def host_id():
    """Returns an id of this host, or of this container: containers of a host share its boot id."""
    return f"{os.uname().nodename} {boot_id()}"


def boot_id():
    """Returns an id of this boot, equal in all containers of a host; empty if unknown."""
    return read_text(pathlib.Path("/proc/sys/kernel/random/boot_id"))
