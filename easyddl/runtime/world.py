"""The ranks of the job: which rank this process is, how ranks agree, and how the job ends."""

import contextlib
import re

from easyddl.runtime import context
from easyddl.runtime.activity import activity as activity  # as a function of this module, too
from easyddl.runtime.engine import at_start as at_start
from easyddl.runtime.engine import engine as engine
from easyddl.runtime.engine import is_started as is_started


def init() -> None:
    """Starts MPI and the engine in this process.

    You need not call it: each function that needs the other ranks calls it. All ranks must call
    such a function.

    A start that failed cannot be repeated: every later call raises the same error.

    Raises:
        RuntimeError: If MPI cannot be loaded, if easyddl has no library for it, or if it counts
            another number of ranks than the launcher started.
    """
    engine()


def rank() -> int:
    """This process's number among all ranks, from 0 to `size() - 1`."""
    return engine().world.rank


def size() -> int:
    """The number of ranks; 1 without a launcher."""
    return engine().world.size


def local_rank() -> int:
    """This process's number among the ranks of its machine, from 0.

    Ranks are on one machine if they run on one kernel under one host name, even if containers
    prevent them from sharing memory.
    """
    return engine().world.local_rank


def local_size() -> int:
    """The number of ranks on this machine."""
    return engine().world.local_size


def node_rank() -> int:
    """This machine's number among all machines, from 0."""
    return engine().world.node_rank


def num_nodes() -> int:
    """The number of machines."""
    return engine().world.num_nodes


def is_root() -> bool:
    """Whether this process is rank 0, the rank that prints and writes files.

    Example:
    ```python
    if ddl.is_root():
        model.save("model.keras")
    ```
    """
    return rank() == 0


def host() -> str:
    """The name of this rank's host."""
    return engine().world.hosts[rank()]


def fingerprint(text):
    """The fingerprint of a collective: the collective fails on all ranks if they differ.

    Args:
        text: String. The collective and its arguments, as the error prints them.
    """
    return engine().core.Fingerprint(text)


class _TakingPart:
    """The context manager of `taking_part`."""

    def __init__(self, text):
        self._text = text

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None and not issubclass(kind, Exception) and is_started():
            engine().communicator.give_up(f"{kind.__name__} interrupted {self._text}.")


def taking_part(text):
    """A context in which this rank prepares and runs a collective.

    An interrupt that a script may catch, such as `KeyboardInterrupt`, can come at any point of the
    body, while the other ranks are at another point of the same collective. All later collectives
    then raise an error on all ranks.

    Args:
        text: String. The collective.
    """
    return _TakingPart(text)


@contextlib.contextmanager
def failing_alike(text):
    """Makes all ranks raise an error if the body raises one, before a collective begins.

    Args:
        text: String. The collective, which follows the body.
    """
    try:
        yield
    except Exception as problem:
        agree(f"{text}, which failed there: {type(problem).__name__}: {problem}")
        raise


def agree(text):
    """Waits for all ranks, and raises the same error on all ranks if their texts differ."""
    # The address in a text ("<function f at 0x7f...>") differs between ranks.
    engine().communicator.barrier(fingerprint(re.sub(r"0x[0-9a-fA-F]+", "0x...", text)))


def barrier() -> None:
    """Returns when all ranks have called it."""
    with taking_part("barrier()"):
        context.require_all_ranks("barrier()")
        agree("barrier()")


def stop_signals():
    """Makes waits ignore Ctrl-C. Called before the interpreter ends."""
    engine().core.stop_signals()


def finish():
    """Waits for the work that is queued on the GPU. Called before the interpreter ends."""
    engine().world.finish()


def end_job(status):
    """Ends all ranks with an exit status. Does not return."""
    engine().core.end_job(status)


def add_step(begin, end, step):
    """Writes a training step to the timeline.

    Args:
        begin: Integer. Its begin, by `time.monotonic_ns()`.
        end: Integer. Its end, by the same clock.
        step: Integer. Its number.
    """
    engine().core.add_step(begin, end, step)


def warn_at_end(text):
    """Prints a text on the root at the end of the job, if all ranks asked for it."""
    engine().core.warn_at_end(text)
