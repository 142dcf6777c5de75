"""Shows how a training script scales: runs some steps of it at each number of ranks.

The command starts the script with `easyddl run` at each number of ranks in turn, and ends it after
the steps. The script must train with model.fit() and a DDLCallback. Callbacks that write
checkpoints, backups and logs are left out. The table shows the samples per second of all ranks, and
their ratio to the first line. It also shows three shares of a step: the time in which the ranks
wait for gradients (exposed), the part of it in which they wait because one rank is slower (lag),
and the time that reading a batch takes by itself (input). The last line names what limits the
scaling.
"""

import argparse
import functools
import os
import shlex
import sys

from easyddl.cli import _hosts, _numbers, _output_files
from easyddl.profiling import step_times

SUMMARY = "run some steps of a script at several numbers of ranks, and show how it scales"


def _ranks(text):
    try:
        return _numbers.positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            "must be numbers of ranks, with -- before the program, as in "
            f"`-np 1 2 4 -- python train.py`. Received: {text!r}"
        ) from None


def _steps(text):
    steps = _numbers.positive(text)
    if steps < step_times.LEAST:
        raise argparse.ArgumentTypeError(f"must be at least {step_times.LEAST}. Received: {text!r}")
    return steps


def add_arguments(parser):
    """Adds the arguments of `easyddl scaling`."""
    parser.add_argument(
        "-np", "-n", type=_ranks, nargs="+", metavar="N", dest="np",
        help="the numbers of ranks (default: 1, 2, 4 and so on, up to the number that `easyddl "
        "run` starts by default)",
    )  # fmt: skip
    _hosts.add_arguments(parser, "as for easyddl run", "as for easyddl run")
    parser.add_argument(
        "--steps", type=_steps, default=30, metavar="N",
        help="steps to measure at each number of ranks (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--warmup", type=_numbers.positive, default=5, metavar="N",
        help="steps to leave out before these, because the first ones compile (default: 5)",
    )  # fmt: skip
    _output_files.add_arguments(parser)
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="[--] PROGRAM ...",
        help="the program and its arguments, as in `python train.py`",
    )  # fmt: skip


def run(options):
    """Runs `easyddl scaling`.

    Returns:
        The exit status: 0, or the status of a job that failed, or 1 if a job cannot be measured, or
        2 if the options are wrong.
    """
    from easyddl.cli.scaling import scaling_job, scaling_report

    program = options.program[options.program[:1] == ["--"] :]
    if not program:
        options.fail("PROGRAM is missing, as in `easyddl scaling -np 1 2 4 -- python train.py`.")
    problem = _output_files.problem(options)
    if problem is not None:
        options.fail(problem)
    try:
        numbers = _numbers_of_ranks(options, program)
    except ValueError as error:
        options.fail(str(error))
    try:
        measurements = _measure(numbers, program, options)
    except KeyboardInterrupt:
        print("easyddl scaling: interrupted; all ranks have been ended", file=sys.stderr)
        return 130
    except scaling_job.JobFailed as failure:
        print(f"easyddl scaling: {failure}", file=sys.stderr)
        return failure.status
    plot = functools.partial(scaling_report.plot, measurements, program)
    _output_files.write(options, scaling_report.as_json(measurements, program), plot)
    return 0


def _numbers_of_ranks(options, program):
    """Returns the numbers of ranks in ascending order.

    Raises:
        ValueError: If the hosts cannot run one of them.
    """
    from easyddl.launch.start import placement
    from easyddl.launch.start.request import Request

    listed, source = _hosts.listed(options)

    def size(number):
        return placement.place(Request(program, number, listed, source), os.environ).size

    if options.np is None:
        return _doubled_to(size(None))
    return sorted({size(number) for number in options.np})


def _doubled_to(largest):
    """Returns a list of the powers of two below a number, and the number itself."""
    return [2**power for power in range((largest - 1).bit_length())] + [largest]


def _measure(numbers, program, options):
    """Measures the script at each number of ranks, and prints each result when it is measured."""
    from easyddl.cli.scaling import scaling_job, scaling_report, scaling_verdict

    def say(line):
        if options.json != "-":
            print(line, flush=True)

    measurements = []
    several = len(numbers) > 1 or numbers[0] > 1
    say(
        f"{options.steps} steps, after {options.warmup} for the warm-up, on "
        f"{', '.join(map(str, numbers))} rank{'s' * several}: {shlex.join(program)}"
    )
    say(scaling_report.header())
    for number in numbers:
        line = scaling_job.command(number, program, options)
        measurements.append(scaling_job.measure(line, program))
        say(scaling_report.row(measurements[-1], measurements[0]))
    few = scaling_report.too_few(measurements, options.steps)
    say("\n".join(["", *few, scaling_verdict.sentence(measurements)]))
    return measurements
