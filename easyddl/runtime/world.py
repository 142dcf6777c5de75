"""The ranks of the job: the number of this rank, comparisons of all ranks, the end of the job."""

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from easyddl.compat import user_code
from easyddl.hosts import launched_process
from easyddl.runtime import calling_thread, settled_errors, shared_error, termination
from easyddl.runtime.engine import activity as activity  # as functions of this module, too
from easyddl.runtime.engine import at_start as at_start
from easyddl.runtime.engine import end_activities
from easyddl.runtime.engine import engine as engine
from easyddl.runtime.engine import is_started as is_started

# The texts of `warn_at_end` by subject.
_warnings: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Guard:
    """The functions by which this module finds out which fits are active on this rank.

    Attributes:
        called: Function without arguments. It returns the user's active call, such as
            "model.fit()".
        require_all_ranks: Function of the name of a collective. It raises an error if some ranks
            have no batch in the current step, and would never enter the collective.
        forget_calls: Function without arguments. It ends the calls that an error has interrupted.
        exchange: Function without arguments. It returns the `FitExchange` of the innermost fit or
            evaluation that has one, or `None`.
        note: Function without arguments. It calls `warn_at_end` for what the active fits have done.
    """

    called: Callable[[], str] = lambda: ""
    require_all_ranks: Callable[[str], None] = lambda what: None
    forget_calls: Callable[[], None] = lambda: None
    exchange: Callable[[], Any] = lambda: None
    note: Callable[[], None] = lambda: None


_guard = Guard()


class _Call(threading.local):
    """The call of a thread: another thread may wait for it within a call of its own.

    Attributes:
        is_of_script: Boolean. Whether the thread is in a collective that the script calls.
    """

    is_of_script = False


_call = _Call()

# See `note_failed_update`, which may be called before the engine has started.
_failed_updates: list[int] = []

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def init() -> None:
    """Starts MPI and the engine in this process.

    You need not call it: each function that needs the other ranks calls it. All ranks must call
    such a function.

    A start that failed cannot be repeated: every later call raises the same error.

    Raises:
        RuntimeError: If MPI cannot be loaded, if easyddl does not support it, or if its number of
            ranks differs from the number that the launcher started.

    Example:
    ```python
    ddl.init()
    print(f"rank {ddl.rank()} of {ddl.size()}")
    ```
    """
    engine()


def rank() -> int:
    """Returns this process's number among all ranks, from 0 to `size() - 1`."""
    return engine().world.rank


def size() -> int:
    """Returns the number of ranks; 1 without a launcher."""
    return engine().world.size


def local_rank() -> int:
    """Returns this process's number among the ranks of its host, from 0.

    Two ranks are on the same host if they run on the same kernel with the same host name, even if
    containers prevent them from sharing memory.
    """
    return engine().world.local_rank


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return engine().world.local_size


def node_rank() -> int:
    """Returns this host's number among all hosts, from 0."""
    return engine().world.node_rank


def num_nodes() -> int:
    """Returns the number of hosts."""
    return engine().world.num_nodes


def is_root() -> bool:
    """Returns whether this process is rank 0, the rank that prints and writes files.

    Example:
    ```python
    if ddl.is_root():
        model.save("model.keras")
    ```
    """
    return rank() == 0


def host() -> str:
    """Returns the name of this rank's host."""
    return engine().world.hosts[rank()]


def set_guard(guard):
    """Sets the `Guard`."""
    global _guard
    _guard = guard


def communicator(of_script=False):
    """Returns the communicator of the collectives that this rank calls now.

    Within a fit there are two: one for what easyddl exchanges by itself, and one for the
    collectives that the script calls in its callbacks. So a collective of the script never matches
    one that it does not know of.

    Args:
        of_script: Boolean. Whether the script calls the collective, although none that it has
            called is active.
    """
    exchange = _guard.exchange()
    if exchange is None:
        return engine().communicator
    return exchange.script if of_script or _call.is_of_script else exchange.own


def is_in_call_of_script():
    """Returns whether this thread is in a collective that the script has called."""
    return _call.is_of_script


def in_call(text):
    """Returns the text of a reduction, and the call of the user in which it is registered."""
    called = _guard.called()
    return f"{text} in {called}" if called else text


def reducer_group():
    """Returns the group of the reducers that are registered now: see `communicator`."""
    exchange = _guard.exchange()
    return engine().reducer_group if exchange is None else exchange.reducer_group


def note_failed_update(number):
    """Makes later collectives fail, unless the same updates of optimizers failed on all ranks.

    Otherwise the weights of the ranks differ.

    Args:
        number: Integer. The number of the update among those outside of fits.
    """
    _failed_updates.append(number)


def fingerprint(text):
    """Returns the fingerprint of a collective. If fingerprints differ, all ranks raise an error.

    Error messages show its text. In a call of the user that contains the collective, such as
    "model.fit()", this call comes first.

    Args:
        text: String. The collective and its arguments.

    Raises:
        RuntimeError: If the collectives belong to another thread of this rank.
    """
    require_owner(text)
    if threading.current_thread() is threading.main_thread():
        text = _within_call(text)
    else:  # another thread cannot know whether other ranks are in a fit
        text += " in a thread of collectives_in()"
    if _failed_updates:
        failed = ", ".join(map(str, _failed_updates))
        text += f" after updates {failed} of optimizers failed there"
    return engine().core.Fingerprint(text)


def _within_call(text):
    """Returns the text of a collective, after the call of the user that contains it."""
    called = _guard.called()
    return f"{called} (in {text})" if called and called not in text else text


def require_owner(text):
    """Raises an error unless the collectives of this rank belong to the calling thread.

    Args:
        text: String. The collective.
    """
    caller = threading.current_thread()
    if caller is calling_thread.owner() or size() == 1:
        return
    raise RuntimeError(
        f"On rank {rank()} the thread {caller.name!r} called "
        f"{_within_call(text)}, but the thread {calling_thread.owner().name!r} calls the "
        "collectives of this rank. Two threads may call them in a different order on each rank, "
        "and get each other's data. Call all collectives in the main thread, or lend them to one "
        "other: `with ddl.collectives_in(thread):`. A thread that exchanges data at the same time "
        "as the main thread needs a communicator of its own: "
        "`mpi4py.MPI.COMM_WORLD.Dup()`."
    )


def on_all_ranks(
    text: str, of_script: bool = False
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorates a function that all ranks call together, and that contains collectives.

    If the function raises an error on this rank, the other ranks may still be at another point of
    the same collective. Unless the error is settled (see `settled_errors`), all later collectives
    of the communicator then raise an error on all ranks, and so do the reductions in the steps of
    its models: see `communicator`. This holds for errors of any kind, because a signal handler may
    raise one at any point.

    Args:
        text: String. The collective, for error messages.
        of_script: Boolean. Whether the script calls it, not easyddl.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        run = _calling_for_script(function) if of_script else function
        return settled_errors.giving_up(run, functools.partial(give_up, text, of_script=of_script))

    return decorate


def _calling_for_script(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        before, _call.is_of_script = _call.is_of_script, True
        try:
            return function(*args, **kwargs)
        finally:
            _call.is_of_script = before

    return run


def give_up(text, error, of_script=False):
    """Ends the collectives of a communicator on all ranks after an error, unless it is settled.

    Args:
        text: String. The collective in which the error was raised.
        error: The exception.
        of_script: Boolean. Whether the script called the collective.
    """
    if of_script:
        _call.is_of_script = False  # the error may have interrupted the end of the collective
    if not is_started() or size() == 1:
        return
    # All ranks raise an error of the engine, or the engine has ended the collective on all ranks.
    if isinstance(error, engine().core.Error) or settled_errors.is_settled(error):
        return
    communicator(of_script).give_up(settled_errors.why_given_up(error, text))
    end_activities()
    _guard.forget_calls()


@contextlib.contextmanager
def failing_alike(text, how=", which failed there"):
    """Returns a context for the code before a collective. All ranks fail if its body fails.

    Args:
        text: String. The collective that follows the body.
        how: String. What follows the text in the error if the body has failed on some ranks only.
    """
    try:
        yield
    except Exception as problem:
        fail_alike(f"{text}{how}", problem)


def fail_alike(text, problem):
    """Raises an error on all ranks because this rank cannot enter a collective.

    Every other rank either calls this function too, or waits in the collective. If all ranks have
    the same problem, each rank raises its own exception. Otherwise the error lists what each rank
    did. The script may expect an error of its signal handler, which its rank raises in any case.

    Args:
        text: String. The collective that this rank was about to enter.
        problem: The exception that this rank raises.
    """
    try:
        agree(f"{text} [{settled_errors.describe(problem)}]")
    except engine().core.Error:
        if not user_code.is_of_handler(problem):
            raise
    raise settled_errors.settled(problem)


@on_all_ranks("a comparison of all ranks")
def agree(text):
    """Waits for all ranks, and raises the same error on all ranks if their texts differ."""
    communicator().barrier(fingerprint(shared_error.comparable(text)))


@on_all_ranks("barrier()", of_script=True)
def barrier() -> None:
    """Returns when all ranks have called it."""
    _guard.require_all_ranks("barrier()")
    agree("barrier()")


def add_step(begin, end, step):
    """Writes a training step to the timeline.

    Args:
        begin: Integer. The start of the step, a time of `time.monotonic_ns()`.
        end: Integer. The end of the step, a time of the same clock.
        step: Integer. The number of the step.
    """
    engine().core.add_step(begin, end, step)


def warn_at_end(subject, text):
    """Prints a text on the root at the end of the job, if all ranks requested the same text.

    A job that ends by an error or a signal compares no texts: see `own_warnings`. A rank that exits
    with another status than 0 prints its own.

    Args:
        subject: String. A later text on the same subject replaces an earlier one.
        text: String. An empty one withdraws an earlier text. `{ranks}` stands for "every rank", or
            for this one.
    """
    _warnings[subject] = text
    if is_started():  # do not start the engine: the other ranks may not call this function
        pass_warnings_on()


def own_warnings():
    """Returns the texts of `warn_at_end` as lines in which `{ranks}` is this rank alone."""
    this_rank = f"rank {launched_process.rank()}"
    return "".join(f"{each}\n".replace("{ranks}", this_rank) for each in _warnings.values() if each)


def warn_at_sigterm():
    """Makes the root print `own_warnings` before SIGTERM ends it."""
    if launched_process.rank() == 0:
        termination.act_before_sigterm(_print_own_warnings)


def _print_own_warnings():
    with contextlib.suppress(Exception):  # a step may be under way
        _guard.note()
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, own_warnings().encode())  # the script may be writing to `sys.stderr`


def pass_warnings_on():
    """Passes the texts of `warn_at_end` to the engine. Called when all ranks have started it."""
    for subject, text in _warnings.items():
        engine().core.warn_at_end(subject, text)
