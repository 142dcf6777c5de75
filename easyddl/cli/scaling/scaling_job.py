"""The jobs of `easyddl scaling`. A job runs the script with `easyddl run` on some ranks."""

import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile

from easyddl.cli.scaling.measurement import Measurement
from easyddl.machine import process_tree
from easyddl.profiling import measurement_request, step_times

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


def command(ranks, program, options):
    """Returns the command line of a job.

    Args:
        ranks: Integer. The number of ranks.
        program: List of strings. The program and its arguments.
        options: Namespace. `steps`, `warmup`, `hosts` and `hostfile`.
    """
    request = measurement_request.MeasurementRequest(options.steps, options.warmup)
    line = [sys.executable, "-m", "easyddl", "run", "-np", str(ranks), "--no-prefix", "--quiet"]
    line += ["--env", f"{measurement_request.VARIABLE}={request.as_text()}"]
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
    name, number = shlex.join(program), line[line.index("-np") + 1]
    ranks = f"{number} rank{'s' * (number != '1')}"
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
    wrong = _impossible(measured)
    if wrong is not None:
        raise JobFailed(
            f"`{name}` could not be measured on {ranks}: {wrong}. The efficiency would be wrong. "
            "Run the command again; if the error stays, report it with the versions that `easyddl "
            "info` prints."
        )
    return Measurement(**measured)


def _impossible(measured):
    """Returns a description of an impossible value in a measurement; `None` without one.

    Args:
        measured: Dict, the answer of a job.
    """
    positive = {
        "the samples of all steps are": [measured["samples"]],
        "the seconds of all steps are": [measured["seconds"]],
        "the seconds of a step are": measured["step_seconds"],
    }
    for what, values in positive.items():
        for value in values:
            if not 0 < value < math.inf:  # this also finds a NaN
                return f"{what} {value}"
    for name in ("exposed", "reading_seconds"):
        value = measured[name]
        if value is not None and not 0 <= value < math.inf:
            return f"`{name}` is {value}"
    return None


def _run(line):
    """Runs a job to its end.

    Returns:
        Pair: the exit status of the job, and its whole output.
    """
    own = os.getpid()
    with tempfile.TemporaryFile() as output:  # unlike a pipe, a file never blocks the writer
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process only
            preexec_fn=lambda: process_tree.die_with_parent(own),
        )
        try:
            status = process.wait()
        finally:
            _end(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return (status if status >= 0 else 128 - status), text


def _end(process):
    """Ends a job that still runs."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TERMINATE)
    if process.poll() is None:
        process_tree.kill_with_descendants(process.pid)
        process.wait()
