"""The answer of a rank to a call: a result or an error, as a message."""

import contextlib
import sys
import traceback

from easyddl.launch.calls import pickling
from easyddl.launch.calls.rank_error import RankError
from easyddl.transport.connection import Message

# An exception of these packages is not restored in a caller that has not imported them.
_HEAVY = {"jax", "jaxlib", "keras", "tensorflow", "torch"}


def of_result(result, facts):
    """Returns the message for a result. All of this module's `of_...` functions run on the rank.

    Args:
        result: What the function returned.
        facts: Dictionary of facts about the rank for the caller, for JSON.
    """
    try:
        return Message(facts, pickling.dumps(result))
    except Exception as error:
        kind = f"{type(result).__module__}.{type(result).__qualname__}"
        text = (
            f"the result of the function, of type {kind}, cannot be sent to the caller "
            f"({_summary(error)}). Return numbers, strings, NumPy arrays, or containers of these."
        )
        return Message({**facts, "text": text, "traceback": ""}, [])


def of_error(error, facts):
    """Returns the message for an exception. Its traceback leaves out the function of this package.

    Args:
        error: The exception.
        facts: Dictionary, as above.
    """
    lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
    facts = {
        **facts,
        "text": _summary(error),
        "traceback": "".join(lines),
        "module": type(error).__module__,
    }
    data = []
    with contextlib.suppress(Exception):  # the traceback is enough
        data = pickling.dumps(error.with_traceback(None))
    return Message(facts, data)


def _summary(error):
    """Returns an exception in one line."""
    with contextlib.suppress(Exception):
        return traceback.format_exception_only(type(error), error)[-1].strip()
    return type(error).__name__


def is_error(rank):
    """Returns whether a rank has answered that there is an error. Takes a `GroupRank`."""
    return rank.answer is not None and "traceback" in rank.answer.header


def failure(rank):
    """Reads the answer of a `GroupRank` that reports an error, as a `RankError` of one line.

    Its cause is the exception of the rank, if it can be restored here.
    """
    found, buffers = rank.answer
    error = RankError(found["text"], rank.number, rank.host, found["traceback"])
    package = found.get("module", "").partition(".")[0]
    if buffers and (package not in _HEAVY or package in sys.modules):
        with contextlib.suppress(Exception):
            error.__cause__ = pickling.loads(buffers)
    return error


def result(rank):
    """Reads the answer of a `GroupRank` that reports a result.

    Raises:
        RankError: If the result cannot be restored in this process.
    """
    try:
        return pickling.loads(rank.answer.buffers)
    except Exception as error:
        text = f"its result cannot be restored in this process ({_summary(error)})"
        raise rank_error([RankError(text, rank.number, rank.host)]) from error


def rank_error(failures, note=""):
    """Returns the error for ranks that failed.

    Args:
        failures: List of `RankError` of one rank each, the one to describe first.
        note: String. What happened to the other ranks.
    """
    first = failures[0]
    line, *others = [f"rank {each.rank} on host {each.host}: {each}" for each in failures]
    paragraphs = [f"{line[0].upper()}{line[1:]}"]
    if others:
        paragraphs.append("\n".join(["Also failed:", *(f"  {other}" for other in others)]))
    if note:
        paragraphs.append(note)
    if first.remote_traceback:
        paragraphs.append(f"On rank {first.rank}:\n{first.remote_traceback.rstrip()}")
    failed = tuple(sorted(each.rank for each in failures))
    error = RankError(
        "\n\n".join(paragraphs), first.rank, first.host, first.remote_traceback, failed
    )
    error.__cause__ = first.__cause__
    return error
