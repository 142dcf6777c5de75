"""The thread of this rank that calls a collective of the script.

All ranks must call the script's collectives in the same order. A single thread does so. Two threads
may call in a different order on each rank, so the ranks compare which thread calls. A rank may call
collectives in its main thread and in one other thread.
"""

import re
import sys
import threading
import weakref

_lock = threading.Lock()
_first = None  # a weak reference to the other thread that calls collectives


def is_main():
    """Returns whether the calling thread is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


def describe():
    """Describes the calling thread, which is not the main one, for the ranks' fingerprints."""
    thread = threading.current_thread()
    name = _without_numbers(thread)
    if not _is_started_by_python(thread):  # a thread of a framework, whose order is unknown
        return f" in the thread {name!r}"
    # `enumerate` lists threads in the order in which they were started.
    alike = [each for each in threading.enumerate() if _without_numbers(each) == name]
    return f" in thread {alike.index(thread) + 1} of those named {name!r}"


def _is_started_by_python(thread):
    return not thread.name.startswith("Dummy-")  # Python's name for threads that it did not start


def _without_numbers(thread):
    # Python's names contain a count of the process's threads, which may differ between ranks.
    return re.sub(r"\d+", "", thread.name)


def other():
    """Returns a third thread that has called collectives and still runs, or `None`.

    It is neither the main thread nor the calling thread. Call this in a thread other than the main
    thread.
    """
    global _first
    thread = threading.current_thread()
    with _lock:
        first = None if _first is None else _first()
        if first is None or not _runs(first):
            _first, first = weakref.ref(thread), thread
    return None if first is thread else first


def _runs(thread):
    # A thread that Python did not start always counts as alive. It has a frame while it runs
    # Python code.
    return thread.is_alive() and thread.ident in sys._current_frames()
