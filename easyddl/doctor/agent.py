"""The process on each host that answers the coordinator's questions about it.

It connects to the coordinator, and ends when that connection ends or is silent. Both sides prove
that they know the token of the examination before anything else is said.
"""

import argparse
import contextlib
import os
import socket
import sys
import threading
import time

from easyddl.doctor import hardware, limits, memory, network, probe, software
from easyddl.doctor.listener import Listener
from easyddl.doctor.messages import Messages
from easyddl.launch import handshake

TOKEN = "EASYDDL_DOCTOR_TOKEN"  # the environment variable
HEARTBEAT = 2  # seconds between two messages of the coordinator
SILENCE = 15  # seconds after which the other side is taken for lost


class Agent:
    """Answers questions, each in a thread of its own.

    Args:
        messages: `Messages`, connected to the coordinator.
        token: String. The secret of this examination.
    """

    def __init__(self, messages, token):
        self._messages = messages
        self._token = token
        self._listener = Listener(token)
        self._questions = {
            "facts": self._facts,
            "names": network.look_up,
            "memory": memory.measure,
            "reach": probe.reach,
            "link": self._link,
        }

    def serve(self):
        """Answers until the connection ends."""
        while True:
            question = self._messages.receive(SILENCE)
            if question is None:
                return
            if question["ask"] == "time":
                self._messages.send({"id": question["id"], "result": time.time()})
            else:
                threading.Thread(target=self._answer, args=[question], daemon=True).start()

    def _answer(self, question):
        answer = {"id": question["id"]}
        try:
            ask = self._questions[question["ask"]]
            answer["result"] = ask(**question.get("arguments", {}))
        except Exception as error:  # the coordinator reports whatever went wrong
            answer["error"] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # `serve` notices that the connection has ended
            self._messages.send(answer)

    def _facts(self):
        return {
            "hostname": socket.gethostname(),
            "software": software.facts(),
            "hardware": hardware.facts(),
            "limits": limits.facts(),
            "interfaces": network.interfaces(),
            "ports": self._listener.ports,
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
        return handshake.connect((address, options.port), token)

    try:
        messages = Messages(probe.connect_to_first(options.addresses, connect))
    except OSError as error:
        places = ", ".join(f"{address}:{options.port}" for address in options.addresses)
        print(
            f"the agent started, but it cannot connect to the coordinator at {places} ({error}): "
            "is there a firewall?",
            file=sys.stderr,
        )
        return 1
    try:
        messages.send({"host": options.host})
        Agent(messages, token).serve()
    except (OSError, ValueError) as error:
        print(f"the connection to the coordinator broke: {error}", file=sys.stderr)
    # Threads may still measure, or wait for a program.
    sys.stderr.flush()
    software.end_programs()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
