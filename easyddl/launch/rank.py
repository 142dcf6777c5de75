"""What a launcher starts in a rank's place: `python -m easyddl.launch.rank`.

It becomes two processes. The first is the one that the launcher knows: it waits for the second and
ends with its exit status. The second, the supervisor, is out of the launcher's reach: where the
launcher kills its processes, because one rank has failed, the supervisor still reports how its own
program ended.
"""

import contextlib
import json
import os
import signal
import sys

from easyddl.launch import signals, supervisor


def main():
    """Runs the rank. Does not return."""
    settings = json.loads(os.environ.pop("EASYDDL_LAUNCH"))
    agent = os.getppid()
    status, report = os.pipe()
    life, lifeline = os.pipe()
    if os.fork() == 0:
        os.close(status)
        os.close(lifeline)
        os.setsid()
        code = 1
        try:
            code = supervisor.Supervisor(settings, life, agent).run()
        except BaseException as error:
            sys.stderr.write(f"easyddl: a rank could not be started: {error!r}\n")
        finally:
            with contextlib.suppress(OSError):  # the launcher has killed the other process
                os.write(report, str(code).encode())
            os._exit(code)
    os.close(report)
    # The supervisor hears of these from `easyddl run`. A scheduler sends them to each process.
    for number in signals.ENDING:
        signal.signal(number, signal.SIG_IGN)
    text = os.read(status, 16)
    os._exit(int(text) if text else 1)


if __name__ == "__main__":
    if "EASYDDL_LAUNCH" not in os.environ:
        sys.exit("This module is started by `easyddl run`. Use `easyddl run --help`.")
    main()
