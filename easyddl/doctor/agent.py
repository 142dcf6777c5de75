"""The agent: a process on each examined host that answers the coordinator's questions.

An agent connects to the coordinator, and exits when that connection ends or is silent. Both sides
prove that they know the token of the examination before they send anything else.
"""

import argparse
import os
import socket
import sys
import threading
import time

from easyddl.doctor import hardware_facts, limits, memory, network, probe, software
from easyddl.doctor.link_ports import LinkPorts
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import ENDED, Connection, ConnectionLost

TOKEN = "EASYDDL_DOCTOR_TOKEN"  # the environment variable
HEARTBEAT = 2  # seconds between two messages of the coordinator
SILENCE = 15  # seconds without a message after which the other side counts as lost


class Agent:
    """Answers questions, each in a thread of its own.

    Args:
        connection: `Connection` to the coordinator.
        token: String. The secret of this examination.
    """

    def __init__(self, connection, token):
        self._connection = connection
        self._token = token
        self._ports = LinkPorts(token)
        self._questions = {
            "facts": self._facts,
            "names": network.look_up,
            "memory": memory.measure,
            "reach": probe.reach,
            "link": self._link,
        }

    def serve(self):
        """Answers until the connection ends.

        Raises:
            ConnectionLost, TimeoutError: When it ends.
        """
        while True:
            question, _ = self._connection.wait(SILENCE)
            if question["ask"] == "time":
                self._send(id=question["id"], result=time.time())
            else:
                threading.Thread(target=self._answer, args=[question], daemon=True).start()

    def _answer(self, question):
        answer = {"id": question["id"]}
        try:
            ask = self._questions[question["ask"]]
            answer["result"] = ask(**question.get("arguments", {}))
        except Exception as error:  # the coordinator reports every error
            answer["error"] = f"{type(error).__name__}: {error}"
        self._send(**answer)

    def _send(self, **message):
        self._connection.send(**message)
        self._connection.flush(SILENCE)

    def _facts(self):
        return {
            "hostname": socket.gethostname(),
            "software": software.facts(),
            "hardware": hardware_facts.facts(),
            "limits": limits.facts(),
            "interfaces": network.interfaces(),
            "ports": self._ports.ports,
        }

    def _link(self, **arguments):
        return probe.measure(self._token, **arguments)


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
    parser.add_argument("addresses", nargs="+")
    options = parser.parse_args(arguments)
    token = os.environ.pop(TOKEN, "")

    def connect(address):
        return handshake.connect((address, options.port), token, protocol.MESSAGES)

    try:
        connection = Connection(probe.connect_to_first(options.addresses, connect))
    except OSError as error:
        places = ", ".join(f"{address}:{options.port}" for address in options.addresses)
        print(
            f"the agent started, but it cannot connect to the coordinator at {places} ({error}): "
            "is there a firewall?",
            file=sys.stderr,
        )
        return 1
    try:
        connection.send(host=options.host)
        Agent(connection, token).serve()
    except (ConnectionLost, OSError) as error:
        if str(error) != ENDED:
            why = error.__cause__ or error
            print(f"the connection to the coordinator broke: {why}", file=sys.stderr)
    # Do not wait for threads: they may still measure, or wait for a program.
    sys.stderr.flush()
    software.end_programs()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
