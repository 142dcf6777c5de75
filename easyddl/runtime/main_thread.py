"""The position of this rank's main thread, which other ranks print if they wait too long."""

import itertools
import pathlib
import platform
import sys
import threading
import traceback

from easyddl.hosts import launched_process

# The system call `read`, by processor.
_READ = {"x86_64": 0, "aarch64": 63}

_MOST = 8  # calls that are shown


def where():
    """Returns the innermost calls of the main thread, as the lines of a traceback.

    If the script is in a call of Keras, for example, its own line comes first.
    """
    main = threading.main_thread()
    calls = list(traceback.walk_stack(sys._current_frames().get(main.ident)))
    shown = calls[:_MOST]
    of_script = (each for each in calls if each[0].f_globals.get("__name__") == "__main__")
    shown += [each for each in itertools.islice(of_script, 1) if each not in shown]
    stack = "".join(traceback.StackSummary.extract(reversed(shown)).format())
    if not _reads_standard_input(main.native_id):
        return stack
    text = f"{stack}  It reads standard input, as `input()` does."
    if launched_process.rank() != 0:
        text += (
            " Launchers pass standard input to rank 0 only. Read it there, and send it to all "
            "ranks with `ddl.broadcast_object`."
        )
    return f"{text}\n"


def _reads_standard_input(thread):
    """Returns whether a thread of this process is blocked in `read` of file descriptor 0."""
    try:
        words = pathlib.Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    except OSError:  # the kernel does not show it
        return False
    call = _READ.get(platform.machine())
    return len(words) > 1 and words[0] == str(call) and int(words[1], 16) == 0
