"""The thread of this rank that calls the script's collectives.

All ranks must call them in the same order. Two threads may call in a different order on each rank,
and would get each other's data. Therefore the collectives belong to one thread: the main thread, or
the thread to which it lends them. They change hands only at points of the program that all ranks
reach in the same order, never because of which thread is faster.
"""

import threading

_lent: list[threading.Thread] = []  # the threads to which they are lent, the latest last


def owner():
    """Returns the thread that may call collectives."""
    return _lent[-1] if _lent else threading.main_thread()


def lend(thread):
    """Lets another thread call collectives until `take_back`, in place of their owner."""
    _lent.append(thread)


def take_back(thread):
    """Ends `lend`."""
    _lent.remove(thread)
