"""The coordinator's end of the connection to an agent."""

import concurrent.futures
import itertools
import threading
import time

from easyddl.doctor.agent import SILENCE


class AgentLostError(ConnectionError):
    """The connection to an agent broke, or the agent is silent."""


class RemoteAgent:
    """Asks an agent. Several questions may be open at once.

    Args:
        host: String. The name of the agent's host.
        messages: `Messages`, connected to the agent.
    """

    def __init__(self, host, messages):
        self.host = host
        self.address = messages.socket.getpeername()[0]
        self.lost = None  # the reason
        self._messages = messages
        self._numbers = itertools.count()
        self._open = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, question, **arguments):
        """Asks a question.

        Args:
            question: String. Its name: see `Agent`.
            **arguments: What JSON can represent.

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
        try:
            self._messages.send({"id": number, "ask": question, "arguments": arguments})
        except OSError as error:
            self._lose(f"the connection broke: {error}")
        return future

    def clock_offset(self, rounds=8, timeout=SILENCE):
        """Compares the agent's clock with this process's, as NTP does.

        Args:
            rounds: Integer. The quickest of so many round trips counts.
            timeout: Number. The seconds to wait for each.

        Returns:
            Pair of numbers in seconds: how far the agent's clock is ahead, and how much that can
            be wrong.
        """
        best = None
        for _ in range(rounds):
            start, mark = time.time(), time.perf_counter()
            theirs = self.ask("time").result(timeout)
            trip = time.perf_counter() - mark
            if best is None or trip < best[1]:
                best = theirs - (start + trip / 2), trip
        return best[0], best[1] / 2

    def close(self):
        """Ends the connection, which ends the agent."""
        self._lose("the examination has ended")
        self._messages.close()
        self._reader.join(5)

    def _read(self):
        try:
            while (answer := self._messages.receive(SILENCE)) is not None:
                with self._lock:
                    future = self._open.pop(answer["id"], None)
                if future is None:
                    continue
                if "error" in answer:
                    future.set_exception(RuntimeError(answer["error"]))
                else:
                    future.set_result(answer["result"])
            self._lose("its agent ended")
        except TimeoutError:
            self._lose(f"its agent was silent for {SILENCE} seconds")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._lose(f"the connection broke: {error}")

    def _lose(self, reason):
        with self._lock:
            if self.lost is None:
                self.lost = reason
            waiting, self._open = list(self._open.values()), {}
        for future in waiting:
            future.set_exception(AgentLostError(reason))


def gather(futures, timeout):
    """Waits for answers.

    Args:
        futures: Dictionary of `Future`.
        timeout: Number. The seconds for all of them.

    Returns:
        Pair of dictionaries: the answers, and for the other keys the reason why there is none.
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
