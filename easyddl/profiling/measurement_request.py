"""The request of `easyddl scaling` to a job that it starts, and the job's answer.

The request is an environment variable of all ranks. The answer is a line in the output of rank 0,
because rank 0 may run on a host that shares no files with `easyddl scaling`.
"""

import json
import os

VARIABLE = "_EASYDDL_SCALING"

_MARK = "_easyddl_scaling "  # the beginning of the answer's line


def assignment(steps, warmup):
    """Returns the assignment of the environment variable.

    Args:
        steps: Integer. The number of batches of a rank to measure.
        warmup: Integer. The number of batches of a rank to leave out before the measurement.
    """
    return f"{VARIABLE}={steps},{warmup}"


def requested():
    """Returns the numbers of `assignment`; `None` unless `easyddl scaling` started this process."""
    text = os.environ.get(VARIABLE)
    return tuple(map(int, text.split(","))) if text else None


def answer(measured):
    """Returns the text of an answer. It begins with a line break, to end an unfinished line.

    Args:
        measured: Dict that JSON can represent.
    """
    return f"\n{_MARK}{json.dumps(measured)}\n"


def split(output):
    """Separates the answer from the other output of a job.

    Args:
        output: String. The whole output of the job.

    Returns:
        Pair: the last answer, or `None` without one, and the list of the other lines.
    """
    lines = output.splitlines()
    answers = [line for line in lines if line.startswith(_MARK)]
    others = [line for line in lines if not line.startswith(_MARK)]
    return (json.loads(answers[-1][len(_MARK) :]) if answers else None), others
