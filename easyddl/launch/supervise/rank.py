"""The program that a launcher starts as a rank: `python -m easyddl.launch.supervise.rank`.

It forks into two processes. The first is the one that the launcher started. It waits for the second
process and exits with its status. The second process is the supervisor of the user's program. It
has a session of its own, so that the launcher cannot kill it: after the failure of another rank it
still reports how its own program ended. The first process also tells the supervisor when the
launcher's agent on this host ends, which the launcher may not notice while the program runs.
"""

import contextlib
import json
import os
import signal
import sys

from easyddl.launch.supervise import launcher_agent, supervisor
from easyddl.machine import processes


def main():
    """Runs the rank. Does not return."""
    settings = json.loads(os.environ.pop("EASYDDL_LAUNCH"))
    agent = launcher_agent.find()
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
    # `easyddl run` tells the supervisor about these. A scheduler sends them to all processes.
    for number in processes.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    launcher_agent.watch(agent, lifeline)
    text = os.read(status, 16)
    os._exit(int(text) if text else 1)


if __name__ == "__main__":
    if "EASYDDL_LAUNCH" not in os.environ:
        sys.exit("This module is started by `easyddl run`. Use `easyddl run --help`.")
    main()
