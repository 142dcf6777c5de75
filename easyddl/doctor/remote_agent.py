"""The coordinator's end of the connection to an agent."""

import concurrent.futures
import contextlib
import socket
import time

from easyddl.doctor.agent import SILENCE
from easyddl.transport.connection import ENDED, ConnectionLost, end_if_unanswered

_TIMEOUT = 60  # seconds for an answer
_TRIPS = 8  # between clocks, of which the fastest is used


class RemoteAgent:
    """Sends questions to an agent, each after the answer to the one before.

    Args:
        connection: `Connection` to the agent.

    Attributes:
        lost: String. Why no more questions can be asked; `None` while the agent answers.
    """

    def __init__(self, connection):
        self.lost = None
        self._connection = connection
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        end_if_unanswered(connection.socket, SILENCE)

    def ask(self, question, **arguments):
        """Asks a question.

        Args:
            question: String. The name of the question: see `agent.serve`.
            **arguments: Arguments of the question, which JSON can represent.

        Returns:
            `concurrent.futures.Future` of the answer.
        """
        return self._pool.submit(self._ask, question, arguments)

    def _ask(self, question, arguments):
        if self.lost is None:
            try:
                self._connection.send(ask=question, arguments=arguments)
                self._connection.flush(_TIMEOUT)
                answer = self._connection.wait(_TIMEOUT).header
            except TimeoutError:
                self.lost = f"no answer within {_TIMEOUT} seconds"
            except ConnectionLost as error:
                # The kernel resets the connection if the process ends with a question unread.
                is_end = str(error) == ENDED or isinstance(error.__cause__, ConnectionResetError)
                self.lost = "its agent ended" if is_end else f"the connection broke: {error}"
        if self.lost is not None:
            raise ConnectionError(self.lost)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def clock_offset(self):
        """Compares the agent's clock with the clock of this process, as NTP does.

        Returns:
            Pair of numbers in seconds: by how much the agent's clock is ahead, and the uncertainty.
        """
        trips = []
        for _ in range(_TRIPS):
            start, mark = time.time(), time.perf_counter()
            theirs = self.ask("time").result()
            trip = time.perf_counter() - mark
            trips.append((trip, theirs - (start + trip / 2)))
        trip, ahead = min(trips)
        return ahead, trip / 2

    def close(self):
        """Closes the connection, which ends the agent and the questions to it."""
        with contextlib.suppress(OSError):  # the connection has ended before
            self._connection.socket.shutdown(socket.SHUT_RDWR)
        self._pool.shutdown(cancel_futures=True)
        self._connection.close()


def gather(futures):
    """Waits for the answers to several questions.

    Args:
        futures: Dictionary of `Future`.

    Returns:
        Pair of dictionaries: the answers, and for keys without an answer the reason.
    """
    concurrent.futures.wait(futures.values())
    errors = {key: future.exception() for key, future in futures.items()}
    answers = {key: futures[key].result() for key, error in errors.items() if error is None}
    return answers, {key: str(error) for key, error in errors.items() if error is not None}
