"""The coordinator's end of the connection to an agent."""

import concurrent.futures
import itertools
import threading
import time

from easyddl.doctor.agent import SILENCE
from easyddl.transport.connection import ENDED, ConnectionLost


class AgentLostError(ConnectionError):
    """The connection to an agent broke, or the agent is silent."""


class RemoteAgent:
    """Sends questions to an agent. Several questions may be open at once.

    Args:
        host: String. The name of the agent's host.
        connection: `Connection` to the agent.
        selector: The selector of the loop that receives the answers.
    """

    def __init__(self, host, connection, selector):
        self.host = host
        self.lost = None  # the reason
        self._connection = connection
        self._heard_at = time.monotonic()
        self._numbers = itertools.count()
        self._open = {}
        self._lock = threading.Lock()
        connection.watch(selector, self._receive)

    def ask(self, question, **arguments):
        """Asks a question.

        Args:
            question: String. The name of the question: see `Agent`.
            **arguments: Arguments of the question, which JSON can represent.

        Returns:
            `concurrent.futures.Future` of the answer.
        """
        future = concurrent.futures.Future()
        with self._lock:
            if self.lost is not None:
                future.set_exception(AgentLostError(self.lost))
                return future
            number = next(self._numbers)
            self._open[number] = future
        self._connection.send(id=number, ask=question, arguments=arguments)
        return future

    def clock_offset(self, rounds=8, timeout=SILENCE):
        """Compares the agent's clock with the clock of this process, as NTP does.

        Args:
            rounds: Integer. The number of round trips, of which the fastest is used.
            timeout: Number. The seconds to wait for each round trip.

        Returns:
            Pair of numbers in seconds: by how much the agent's clock is ahead, and the uncertainty.
        """
        best = None
        for _ in range(rounds):
            start, mark = time.time(), time.perf_counter()
            theirs = self.ask("time").result(timeout)
            trip = time.perf_counter() - mark
            if best is None or trip < best[1]:
                best = theirs - (start + trip / 2), trip
        return best[0], best[1] / 2

    def check_silence(self):
        """Treats the agent as lost if it was silent for too long. The receiving loop calls this."""
        if time.monotonic() > self._heard_at + SILENCE:
            self._lose(f"its agent was silent for {SILENCE} seconds")

    def close(self):
        """Closes the connection, which ends the agent. The receiving loop must have ended."""
        self._lose("the examination has ended")
        self._connection.close()

    def _receive(self):
        self._heard_at = time.monotonic()
        try:
            for answer, _ in self._connection.receive():
                self._take(answer)
        except ConnectionLost as error:
            is_end = str(error) == ENDED
            self._lose(
                "its agent ended" if is_end else f"the connection broke: {error.__cause__ or error}"
            )
        except (KeyError, TypeError) as error:
            self._lose(f"the connection broke: {error}")

    def _take(self, answer):
        with self._lock:
            future = self._open.pop(answer["id"], None)
        if future is None:
            return
        if "error" in answer:
            future.set_exception(RuntimeError(answer["error"]))
        else:
            future.set_result(answer["result"])

    def _lose(self, reason):
        with self._lock:
            if self.lost is None:
                self.lost = reason
            waiting, self._open = list(self._open.values()), {}
        self._connection.unwatch()
        for future in waiting:
            future.set_exception(AgentLostError(reason))


def gather(futures, timeout):
    """Waits for the answers to several questions.

    Args:
        futures: Dictionary of `Future`.
        timeout: Number. The seconds to wait for all of them.

    Returns:
        Pair of dictionaries: the answers, and for keys without an answer the reason.
    """
    concurrent.futures.wait(futures.values(), timeout)
    answers, problems = {}, {}
    for key, future in futures.items():
        if not future.done():
            problems[key] = f"no answer within {timeout:.0f} seconds"
        elif future.exception() is not None:
            problems[key] = str(future.exception())
        else:
            answers[key] = future.result()
    return answers, problems
