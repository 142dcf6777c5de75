"""The jobs of `easyddl scaling`. A job runs the script with `easyddl run` on some ranks."""

import dataclasses
import os
import shlex
import statistics

from easyddl.hosts.topology_tree import counted
from easyddl.machine import process_tree
from easyddl.machine.background_program import BackgroundProgram
from easyddl.profiling import measurement_request, step_times
from easyddl.runtime import command_process

_LINES = 20  # lines of a job's output to show if it fails
_TERMINATE = 15.0  # seconds in which `easyddl run` must end all ranks


class JobFailed(Exception):
    """A job that failed, or that could not be measured.

    Attributes:
        status: Integer. The exit status of the command.
    """

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of a script at one number of ranks.

    Attributes:
        ranks: Integer. The number of ranks.
        steps: Integer. The number of steps of each rank.
        samples: Integer. The samples of all ranks in these steps.
        seconds: Float. The time of these steps.
        step_seconds: List of floats. The time of each step.
        exposed: Float. The share of the time in which the ranks wait for averaged gradients; `None`
            if it is not measured.
        lag: Float. The part of `exposed` in which they wait for the slowest rank, or `None`.
        reading_seconds: Float. The time that reading a batch takes by itself, or `None`.
        gradient_bytes: Integer. The bytes of the model's gradients.
        wire_dtype: String. The dtype in which they are sent to other hosts.
        threads: Integer. The number of compute threads of a rank.
        hosts: List of dicts, by host: `host`, and the number of its `ranks`, `cores` and `gpus`.
    """

    ranks: int
    steps: int
    samples: int
    seconds: float
    step_seconds: list[float]
    exposed: float | None
    lag: float | None
    reading_seconds: float | None
    gradient_bytes: int
    wire_dtype: str
    threads: int
    hosts: list[dict]

    @property
    def rate(self):
        """The samples per second of all ranks."""
        return self.samples / self.seconds

    @property
    def batch(self):
        """The mean number of samples of a rank in a step."""
        return self.samples / self.steps / self.ranks

    @property
    def step(self):
        """The mean time of a step, in seconds."""
        return self.seconds / self.steps

    @property
    def median_step(self):
        """The median time of a step, in seconds."""
        return statistics.median(self.step_seconds)

    @property
    def input(self):
        """The time to read a batch divided by the time of a step, or `None`."""
        return None if self.reading_seconds is None else self.reading_seconds / self.step

    def speed_up(self, first):
        """Returns the rate divided by the rate of another measurement."""
        return self.rate / first.rate

    def efficiency(self, first):
        """Returns the speed-up divided by the ideal speed-up, the ratio of the numbers of ranks."""
        return self.speed_up(first) * first.ranks / self.ranks


def command(ranks, program, options):
    """Returns the command line of a job.

    Args:
        ranks: Integer. The number of ranks.
        program: List of strings. The program and its arguments.
        options: Namespace. `steps`, `warmup`, `hosts` and `hostfile`.
    """
    line = [*command_process.python("easyddl"), "run", "-np", str(ranks), "--no-prefix", "--quiet"]
    line += ["--env", measurement_request.assignment(options.steps, options.warmup)]
    for name in ("hosts", "hostfile"):
        value = getattr(options, name)
        line += [f"--{name}", value] if value is not None else []
    return [*line, "--", *program]


def measure(line, program):
    """Runs a job, and returns its `Measurement`.

    Args:
        line: List of strings. The command line.
        program: List of strings. The program and its arguments, for messages.

    Raises:
        JobFailed: If the job fails or cannot be measured.
    """
    status, output = _run(line)
    measured, lines = measurement_request.split(output)
    name, ranks = shlex.join(program), counted(int(line[line.index("-np") + 1]), "rank")
    if status:
        shown = "\n".join(f"    {text}" for text in lines[-_LINES:])
        raise JobFailed(
            f"`{name}` failed on {ranks} with exit status {status}. Its last lines:\n{shown}",
            status,
        )
    if measured is None:
        raise JobFailed(
            f"`{name}` ended on {ranks} without training: it never called model.fit() with a "
            "ddl.DDLCallback() among its callbacks, which measures the steps. Add the four lines "
            "of easyddl to the script."
        )
    if len(measured["step_seconds"]) < step_times.LEAST:
        raise JobFailed(
            f"`{name}` ended on {ranks} after too few steps: {measured['steps']} could be "
            f"measured, and {step_times.LEAST} are needed. The warm-up, the first step of each "
            "epoch, and steps in which a rank has no batch do not count. Train on more data or for "
            "more epochs, or pass a smaller --warmup."
        )
    return Measurement(**measured)


def _run(line):
    """Runs a job to its end.

    Returns:
        Pair: the exit status of the job, and its whole output.
    """
    own = os.getpid()
    job = BackgroundProgram(line, preexec_fn=lambda: process_tree.die_with_parent(own))
    try:
        job.wait(None)
        return (job.status if job.status >= 0 else 128 - job.status), job.output()
    finally:
        job.end_within(_TERMINATE)
        job.close()
