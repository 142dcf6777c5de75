"""Collectives in a thread other than the main one."""

from __future__ import annotations

import contextlib
import threading

from easyddl.runtime import calling_thread, world

_NAME = "collectives_in()"


class _Loan(contextlib.AbstractContextManager):
    """The context manager of `collectives_in`."""

    def __init__(self, thread):
        self._thread = thread

    @world.on_all_ranks(_NAME, of_script=True)
    def __enter__(self):
        world.require_owner(_NAME)
        calling_thread.lend(self._thread)

    @world.on_all_ranks(_NAME, of_script=True)
    def __exit__(self, kind, error, traceback):
        thread = self._thread
        try:
            if error is not None and thread.is_alive():
                # The thread may wait for long.
                world.give_up(f"the body of {_NAME}", error, of_script=True)
            if thread.ident is not None:
                thread.join()
        finally:
            calling_thread.take_back(thread)


def collectives_in(thread: threading.Thread) -> contextlib.AbstractContextManager[None]:
    """Lets another thread call the collectives, in place of the thread that enters the context.

    All ranks must call collectives in the same order, so each rank has one thread that calls them:
    the main thread, unless it lends them by this function. `fit`, `evaluate` with a `DDLCallback`
    and the first update of an optimizer call collectives, too.

    Within the body only the other thread may call them. The end of the body waits for the end of
    that thread. All ranks must enter the context at the same point of their programs.

    Args:
        thread: A `threading.Thread` that has not ended. Start it within the body.

    Raises:
        TypeError: If `thread` is not a `threading.Thread`.
        ValueError: If `thread` has ended, or is the calling thread.
        RuntimeError: If the calling thread may not call collectives itself. All collectives then
            raise an error on all ranks.

    Example:
    ```python
    training = threading.Thread(target=train)
    with ddl.collectives_in(training):
        training.start()
        show_progress_until_the_end_of(training)
    ```
    """
    if not isinstance(thread, threading.Thread):
        raise TypeError(
            "`thread` must be a `threading.Thread`, such as `threading.Thread(target=train)`. "
            f"Received: thread of type {type(thread).__name__}"
        )
    has_ended = thread.ident is not None and not thread.is_alive()
    if has_ended or thread is threading.current_thread():
        what = "has ended" if has_ended else "is the calling thread"
        raise ValueError(
            "`thread` must be another thread than the calling one, and must not have ended. Pass a "
            f"thread that the body starts. Received: {thread.name!r}, which {what}"
        )
    return _Loan(thread)
