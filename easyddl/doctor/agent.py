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

from easyddl.doctor import hardware_facts, limits, link_ports, memory, network, probe, software
from easyddl.hosts import launched_process
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection, ConnectionLost, end_if_unanswered

TOKEN = "EASYDDL_DOCTOR_TOKEN"  # the environment variable
SILENCE = 15  # seconds after which a host that does not answer is lost


def serve(connection, token):
    """Answers questions, one after another, until the connection ends.

    Args:
        connection: `Connection` to the coordinator.
        token: String. The secret of this examination.

    Raises:
        ConnectionLost: When the connection ends.
    """
    questions = {
        "time": time.time,
        "facts": functools.partial(_facts, link_ports.open_ports(token)),
        "names": network.look_up,
        "memory": memory.measure,
        "reach": probe.reach,
        "link": functools.partial(probe.measure, token),
    }
    while True:
        question, _ = connection.wait()
        try:
            answer = {"result": questions[question["ask"]](**question["arguments"])}
        except Exception as error:  # the coordinator reports every error
            answer = {"error": f"{type(error).__name__}: {error}"}
        connection.send(**answer)
        connection.flush(None)


def _facts(ports):
    return {
        "hostname": socket.gethostname(),
        "software": software.facts(),
        "hardware": hardware_facts.facts(),
        "limits": limits.facts(),
        "interfaces": network.interfaces(),
        "ports": ports,
    }


def main():
    """Runs an agent.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="easyddl doctor's agent")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args()
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
        serve(connection, token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
