"""`easyddl.run` and `easyddl.Ranks`: functions of a notebook or a script on many ranks."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from easyddl.hosts import launched_process
from easyddl.hosts.topology_tree import counted
from easyddl.launch.calls import answers, call_arguments, pickling
from easyddl.launch.calls.rank_error import RankError
from easyddl.launch.calls.rank_group import RankGroup
from easyddl.launch.output.relay import Relay
from easyddl.runtime import console

_OUTPUT = 10.0  # seconds without output after which what has not arrived is given up

_all: weakref.WeakSet[Ranks] = weakref.WeakSet()


class Ranks:
    """Processes that run functions as the ranks of one job. They are kept from call to call.

    The process that creates the object, such as a Jupyter kernel, is no rank. It does not start
    MPI, and it need not import Keras. `easyddl run` starts the ranks.

    Each call of `run` sends a function by cloudpickle, so a function may be defined in a notebook.
    What it changes in its own globals is lost after the call. A rank keeps what it stores in a
    module, such as `__main__`:

    ```python
    def build():
        import __main__
        __main__.model = make_model()
    ```

    A module that a rank has imported stays as it was then. After a change of the module create new
    ranks.

    Use the object as a context manager, or call `close`.

    Args:
        np: Positive integer. The number of ranks. Defaults to 2.
        hosts: String such as `"h1:4,h2:4"`. The hosts, with the number of ranks that each may run.
            Defaults to `None`: this host, or the hosts of the scheduler's allocation. All hosts
            need the same Python and the same packages at the same paths.
        env: Dictionary of environment variables for the ranks, besides those of this process.
            Defaults to `None`.
        cpus: Iterable of the numbers of the CPUs that the ranks may use, as in `range(4)`. All
            ranks then run on this host. Use it for several jobs at the same time, each on cores
            of its own. Defaults to `None`: the CPUs that this process may use.
        start_timeout: Positive number. Seconds in which all ranks must start. Defaults to 60.
        grace: Number. Seconds that the other ranks have for their answers when a function has
            raised an exception on a rank. Ranks that have not answered by then probably wait for
            that rank, and all ranks are ended. Defaults to 5.
        options: Sequence of strings. Further options of `easyddl run`, as in `("--nic", "ib0")`.
            Defaults to none.

    Raises:
        ModuleNotFoundError: If cloudpickle is not installed.
        RuntimeError: If the ranks do not start. The message holds what the launcher printed.
        TypeError, ValueError: If an argument is wrong.

    Example:
    ```python
    with ddl.Ranks(np=4) as ranks:
        histories = ranks.run(train, args=(0.01,))
        scores = ranks.run(evaluate)
    ```
    """

    def __init__(
        self,
        np: int = 2,
        hosts: str | None = None,
        env: Mapping[str, str] | None = None,
        *,
        cpus: Iterable[int] | None = None,
        start_timeout: float = 60.0,
        grace: float = 5.0,
        options: Sequence[str] = (),
    ) -> None:
        env = call_arguments.check_job(np, hosts, env)
        allowed = call_arguments.check_cpus(cpus, hosts)
        call_arguments.check_options(options)
        call_arguments.check_seconds("start_timeout", start_timeout)
        call_arguments.check_seconds("grace", grace)
        if launched_process.is_rank_of_several():
            raise RuntimeError(
                "This process is itself a rank of a job, and cannot start other ranks. Start the "
                "script without mpirun or srun."
            )
        pickling.require()
        self.size = np
        self._grace = grace
        self._is_fit = True  # whether the ranks can run another function
        self._group = RankGroup(np, hosts, env, allowed, start_timeout, options)
        # Also runs at exit.
        self._finalizer = weakref.finalize(self, RankGroup.close, self._group)
        _all.add(self)

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Any]:
        """Calls a function on every rank, all at the same time.

        The output of the ranks appears in `sys.stdout` and `sys.stderr` while the function runs.
        Each line begins with the rank that wrote it.

        An interrupt (Ctrl-C, or the button of a notebook) ends the ranks.

        Args:
            function: Any callable. Within it `ddl.rank()` tells which rank calls it.
            args: Tuple of arguments, the same on all ranks.
            kwargs: Dictionary of keyword arguments. Defaults to `None`.
            timeout: Positive number. Seconds after which the call ends the ranks. Defaults to
                `None`: the function may take any time.

        Returns:
            List of the results, in the order of the ranks.

        Raises:
            RankError: If the function raised an exception on a rank, if its result cannot be sent,
                or if a rank ended. If the ranks can still run collectives, they stay usable.
                Otherwise they are ended.
            TimeoutError: If `timeout` seconds have passed.
            RuntimeError: If the ranks have ended before.
        """
        settings, call = call_arguments.message_of(function, args, kwargs)
        return self._call(settings, call, timeout)

    def _call(self, settings, call, timeout):
        if timeout is not None:
            call_arguments.check_seconds("timeout", timeout)
        if not self._group.busy.acquire(blocking=False):
            raise RuntimeError("These ranks already run a function, in another thread or call.")
        try:
            self._require_open()
            relay = self._group.relay = Relay(self.size, (sys.stdout, sys.stderr))
            self._is_fit = False
            try:
                failures = self._ask({**settings, "watched": relay.is_live}, call, timeout)
            finally:
                relay.finish()
            if failures:
                raise self._error(failures)
            self._is_fit = True
            return [answers.result(each) for each in self._group.ranks]
        except BaseException as error:
            if isinstance(error, Exception):
                self._require_open()  # another thread has closed the ranks meanwhile
            if not self._is_fit:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self._group.end(reason.removesuffix(": "))
            raise
        finally:
            self._group.busy.release()

    def _ask(self, settings, call, timeout):
        """Sends a call and waits for the answers. Returns the failures, by rank."""
        started, failed_at = time.monotonic(), None
        self._group.send(*call, ask="run", settings=settings)
        while not all(each.is_done for each in self._group.ranks):
            self._group.pump()
            if self._group.ended_rank() is not None:
                ended = self._group.why_ended()
                raise answers.rank_error([*self._failures(), ended])
            now = time.monotonic()
            if all(each.answer is not None for each in self._group.ranks):
                self._check_output_arrives(now)
                continue
            if failed_at is None and any(map(answers.is_error, self._group.ranks)):
                failed_at = now
            if failed_at is not None and now - failed_at > self._grace:
                raise answers.rank_error(self._failures(), self._still_running())
            if timeout is not None and now - started > timeout:
                raise TimeoutError(
                    f"The function has not returned after {timeout:g} seconds (`timeout`). "
                    f"{self._still_running()}"
                )
        return self._failures()

    def _check_output_arrives(self, now):
        """Raises an error if ranks have returned, and nothing of their output arrives."""
        if now - self._group.heard_at > max(self._grace, _OUTPUT):
            silent = [
                RankError("the rest of its output has not arrived.", each.number, each.host)
                for each in self._group.ranks
                if not each.is_done
            ]
            raise answers.rank_error([*self._failures(), *silent], "All ranks were ended.")

    def _failures(self):
        return [answers.failure(each) for each in self._group.ranks if answers.is_error(each)]

    def _still_running(self):
        running = [each.number for each in self._group.ranks if each.answer is None]
        ranks = console.ranks(running).capitalize()
        return f"{ranks} still ran the function, and all ranks were ended."

    def _error(self, failures):
        """Returns the error for failures after which all ranks have answered."""
        problem = self._find_problem()
        self._is_fit = problem is None
        if self._is_fit:
            return answers.rank_error(failures)
        return answers.rank_error(failures, f"All ranks were ended: {console.sentence(problem)}")

    def _find_problem(self):
        """Returns why the ranks can no longer run collectives; `None` if they can."""
        limit = time.monotonic() + max(self._grace, 1.0)
        self._group.send(ask="check")
        while not all(each.is_done for each in self._group.ranks):
            self._group.pump()
            if self._group.ended_rank() is not None:
                return "a rank has ended"
            if time.monotonic() > limit:
                return "they can no longer meet in a collective"
        facts = [each.answer.header for each in self._group.ranks]
        if len({each["started"] for each in facts}) > 1:
            return "only some of them have started MPI"
        return next((each["problem"] for each in facts if each["problem"]), None)

    def _require_open(self):
        if self._group.reason is not None:
            raise RuntimeError(
                f"These ranks have ended: {console.sentence(self._group.reason)} Create new "
                f"ones: ranks = easyddl.Ranks(np={self.size})"
            ) from None

    def close(self) -> None:
        """Ends the ranks. Further calls have no effect."""
        self._finalizer.detach()
        self._group.close(Relay(self.size, (sys.stdout, sys.stderr)))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        hosts = dict.fromkeys(each.host for each in self._group.ranks)
        ended = "" if self._group.reason is None else f", ended: {self._group.reason}"
        ranks = counted(self.size, "rank")
        return f"<easyddl.Ranks: {ranks} on {', '.join(hosts)}{ended}>"


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 2,
    hosts: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    cpus: Iterable[int] | None = None,
    timeout: float | None = None,
    start_timeout: float = 60.0,
    grace: float = 5.0,
    options: Sequence[str] = (),
) -> list[Any]:
    """Calls a function on the ranks of a new job, from a notebook or a script without `mpirun`.

    The ranks end with the call. `easyddl.Ranks` keeps them for further calls.

    Args:
        function: Any callable. Within it `ddl.rank()` tells which rank calls it.
        args: Tuple of arguments, the same on all ranks.
        kwargs: Dictionary of keyword arguments. Defaults to `None`.
        np: Positive integer. The number of ranks. Defaults to 2.
        hosts: String such as `"h1:4,h2:4"`. See `easyddl.Ranks`.
        env: Dictionary of environment variables for the ranks. See `easyddl.Ranks`.
        cpus: Iterable of the numbers of the CPUs that the ranks may use. See `easyddl.Ranks`.
        timeout: Positive number. Seconds that the function may take. Defaults to `None`: any time.
        start_timeout: Positive number. Seconds in which all ranks must start. Defaults to 60.
        grace: Number. Seconds that the other ranks have after an exception. See `easyddl.Ranks`.
        options: Sequence of strings. Further options of `easyddl run`. Defaults to none.

    Returns:
        List of the results, in the order of the ranks.

    Raises:
        RankError: If the function failed on a rank.
        TimeoutError: If `timeout` seconds have passed.

    Example:
    ```python
    histories = ddl.run(train, args=(0.01,), np=4)
    ```
    """
    settings, call = call_arguments.message_of(function, args, kwargs)
    if timeout is not None:
        call_arguments.check_seconds("timeout", timeout)
    ranks = Ranks(
        np, hosts, env, cpus=cpus, start_timeout=start_timeout, grace=grace, options=options
    )
    with ranks:
        return ranks._call(settings, call, timeout)


def _forget_in_child():
    """Closes the connections in a forked child, because the ranks must end with their caller."""
    for ranks in list(_all):
        ranks._finalizer.detach()
        ranks._group.forget()


os.register_at_fork(after_in_child=_forget_in_child)
