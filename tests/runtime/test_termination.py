"""Signals that ask a process to end: which are recorded, and which are left alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from easyddl.runtime import termination

TERM = termination.numbers_of(["SIGTERM"])


@pytest.mark.parametrize("names", ["SIGTERM", ("SIGTSTP",), ("SIGKILL",), ("TERM",), (15,), None])
def test_names(names):
    with pytest.raises(ValueError, match="`signals` must be a tuple of names") as caught:
        termination.numbers_of(names)
    assert f"signals={names!r}" in str(caught.value)


def test_a_signal_is_recorded_until_watching_ends():
    watched = termination.TerminationSignals(termination.numbers_of(("SIGTERM", "SIGUSR1")))
    watched.watch()
    try:
        assert watched.received == 0
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)  # the same request
        assert watched.received == signal.SIGUSR1
    finally:
        watched.stop_watching()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_handler_of_the_script_is_left_alone(handler):
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        watched = termination.TerminationSignals(TERM)
        watched.watch()
        assert signal.getsignal(signal.SIGTERM) == handler
        watched.stop_watching()
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_handler_that_the_script_sets_later_stays():
    watched = termination.TerminationSignals(TERM)
    watched.watch()
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        watched.stop_watching()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        assert callable(previous)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_another_thread_sets_no_handler():
    watched = termination.TerminationSignals(TERM)
    thread = threading.Thread(target=watched.watch)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def send(child, number):
    """Sends a signal as a launcher does: from another process than the child's parent."""
    subprocess.run(["kill", f"-{number:d}", str(child)], check=True, timeout=60)


def fork_child(ready):
    child = os.fork()
    if child == 0:
        os.write(ready, b"%d\n" % os.getpid())
        time.sleep(60)
        os._exit(1)
    return child


@pytest.mark.parametrize("is_forked_first", [True, False])
def test_a_forked_child_ignores_the_signals_until_watching_ends(is_forked_first):
    watched = termination.TerminationSignals(TERM)
    began, begin = os.pipe()
    child = fork_child(begin) if is_forked_first else None
    watched.watch()
    try:
        child = child or fork_child(begin)
        os.read(began, 16)
        send(child, signal.SIGTERM)
        time.sleep(0.2)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        watched.stop_watching()
        send(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert watched.received == 0


def test_a_forked_child_that_has_ignored_a_signal_ends_with_its_parent():
    began, begin = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            child = fork_child(begin)
            termination.TerminationSignals(TERM).watch()
            send(child, signal.SIGTERM)
        finally:
            os._exit(0)  # which does not end the child
    os.close(begin)
    os.waitpid(parent, 0)
    with open(began) as pipe:  # it ends when the child does
        assert pipe.read().count("\n") == 1


def doze():
    """Sleeps in Python code, which calls handlers of signals that have come just before a sleep."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_forked_child_obeys_its_parent():
    watched = termination.TerminationSignals(TERM)
    watched.watch()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=doze) for _ in range(20)]
    try:
        for child in children:
            child.start()
            child.terminate()  # the child may not have run yet
        for child in children:
            child.join(30)
            assert child.exitcode == -signal.SIGTERM
    finally:
        watched.stop_watching()
        for child in children:
            child.kill()


@pytest.mark.parametrize(
    ("before", "printed"),
    [("", b""), ("termination.act_before_sigterm(lambda: print('acts', flush=True))\n", b"acts\n")],
)
def test_a_second_request_ends_the_process(before, printed):
    code = (
        "import os, signal\n"
        "from easyddl.runtime import termination\n"
        "termination.ONE_REQUEST = 0\n"
        f"{before}"
        "watched = termination.TerminationSignals([signal.SIGTERM])\n"
        "watched.watch()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('goes on', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('never', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"goes on\n" + printed)
