"""What the subcommands that start agents on hosts have in common."""

import contextlib
import signal
import sys

from easyddl.cli import _numbers


def add_arguments(parser, seconds):
    """Adds the arguments that say how agents are started, and how long they measure.

    Args:
        parser: `ArgumentParser`.
        seconds: Integer. The default time to measure links.
    """
    parser.add_argument(
        "--rsh", metavar="PROGRAM", help="the program that starts commands on a host, such as ssh"
    )
    parser.add_argument(
        "--launcher",
        choices=("auto", "hydra", "openmpi", "srun"),
        default="auto",
        help="as for easyddl run (default: auto)",
    )
    parser.add_argument("--nic", metavar="NAMES", help="as for easyddl run")
    parser.add_argument(
        "--seconds",
        type=_numbers.seconds_above_0,
        default=float(seconds),
        metavar="S",
        help=f"the time to measure links (default: {seconds})",
    )
    parser.add_argument(
        "--start-timeout",
        type=_numbers.seconds_above_0,
        default=30.0,
        metavar="S",
        help="the time after which a host that did not answer counts as unreachable (default: 30)",
    )


@contextlib.contextmanager
def interruptible():
    """Returns a context in which SIGTERM and SIGHUP act like Ctrl-C, to end the agents."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = {
        each: signal.signal(each, interrupt)
        for each in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN  # nohup makes SIGHUP ignored
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def progress():
    """Returns a context that shows progress on one line of a terminal, and clears it at the end.

    Yields:
        Function of a string that describes the current activity.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return

    def show(text):
        sys.stderr.write(f"\r\033[K{text[:78]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\033[K")
