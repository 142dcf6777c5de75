"""What `easyddl scaling` asks of a job that it starts, and how the job answers.

The request is an environment variable of all ranks. The answer is a line that rank 0 prints,
because rank 0 may run on a host that shares no files with `easyddl scaling`.
"""

import dataclasses
import json
import os

VARIABLE = "_EASYDDL_SCALING"

_MARK = "_easyddl_scaling "  # with which the line of the answer begins


@dataclasses.dataclass(frozen=True)
class MeasurementRequest:
    """A request to measure steps of a training, and then to end the job.

    Attributes:
        steps: Integer. The number of batches of a rank to measure.
        warmup: Integer. The number of batches of a rank to leave out before.
    """

    steps: int
    warmup: int

    def as_text(self):
        """The value of the environment variable."""
        return json.dumps(dataclasses.asdict(self))


def from_environment():
    """The `MeasurementRequest` of this process; `None` unless `easyddl scaling` started it."""
    text = os.environ.get(VARIABLE)
    return MeasurementRequest(**json.loads(text)) if text else None


def answer(measured):
    """The text of an answer: a line of its own, also after an unfinished line.

    Args:
        measured: Dict that can be written as JSON.
    """
    return f"\n{_MARK}{json.dumps(measured)}\n"


def split(output):
    """Separates the answer from the other output of a job.

    Args:
        output: String. All that the job has printed.

    Returns:
        Pair of the last answer, `None` without one, and the list of the other lines.
    """
    lines = output.splitlines()
    answers = [line for line in lines if line.startswith(_MARK)]
    others = [line for line in lines if not line.startswith(_MARK)]
    return (json.loads(answers[-1][len(_MARK) :]) if answers else None), others
