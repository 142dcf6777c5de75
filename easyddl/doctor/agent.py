"""The agent: a process on each examined host that answers the coordinator's questions.

An agent connects to the coordinator, and ends when that connection ends. Both sides prove that they
know the token of the examination before they send anything else.
"""

import argparse
import contextlib
import functools
import os
import socket
import sys
import time

from easyddl.doctor import hardware_facts, limits, memory, network, probe, software
from easyddl.doctor.link_ports import LinkPorts
from easyddl.hosts import launched_process
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection, ConnectionLost, end_if_unanswered

TOKEN = "EASYDDL_DOCTOR_TOKEN"  # the environment variable
SILENCE = 15  # seconds after which a host that does not answer is lost


class Agent:
    """Answers questions, one after another.

    Args:
        connection: `Connection` to the coordinator.
        token: String. The secret of this examination.
    """

    def __init__(self, connection, token):
        self._connection = connection
        self._ports = LinkPorts(token)
        self._questions = {
            "time": time.time,
            "facts": self._facts,
            "names": network.look_up,
            "memory": memory.measure,
            "reach": probe.reach,
            "link": functools.partial(probe.measure, token),
        }

    def serve(self):
        """Answers until the connection ends.

        Raises:
            ConnectionLost: When it ends.
        """
        while True:
            question, _ = self._connection.wait()
            self._connection.send(**self._answer(**question))
            self._connection.flush(None)

    def _answer(self, ask, arguments):
        try:
            return {"result": self._questions[ask](**arguments)}
        except Exception as error:  # the coordinator reports every error
            return {"error": f"{type(error).__name__}: {error}"}

    def _facts(self):
        return {
            "hostname": socket.gethostname(),
            "software": software.facts(),
            "hardware": hardware_facts.facts(),
            "limits": limits.facts(),
            "interfaces": network.interfaces(),
            "ports": self._ports.ports,
        }


def main(arguments=None):
    """Runs an agent.

    Args:
        arguments: List of strings. Defaults to `None`, the arguments of the process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="easyddl doctor's agent")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args(arguments)
    token = os.environ.pop(TOKEN, "")
    address = os.environ[launched_process.RUN_ADDRESS]
    try:
        sock = handshake.connect((address, options.port), token, protocol.MESSAGES)
    except OSError as error:
        print(
            "the agent started, but it cannot connect to the coordinator at "
            f"{address}:{options.port} ({error}): is there a firewall?",
            file=sys.stderr,
        )
        return 1
    end_if_unanswered(sock, SILENCE)
    connection = Connection(sock)
    connection.send(host=options.host)
    with contextlib.suppress(ConnectionLost):
        Agent(connection, token).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
