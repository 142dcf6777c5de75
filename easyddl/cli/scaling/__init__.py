"""Shows how a training script scales: runs some steps of it at each number of ranks.

The script is started by `easyddl run` at each number of ranks in turn, and ended after the steps.
It must train by model.fit() with a DDLCallback. Callbacks that write checkpoints, backups and logs
are left out. The table has the samples per second of all ranks, and their ratio to the first line;
the share of a step in which the ranks wait for gradients (exposed), in which they do so because one
rank is slower (lag), and that reading a batch takes by itself (input). The last line names what
limits the scaling.
"""

import argparse
import json
import os
import pathlib
import shlex
import sys

from easyddl.cli import _numbers, _output_files
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
    named = parser.add_mutually_exclusive_group()
    named.add_argument("-H", "--hosts", metavar="h1:4,h2:4", help="as for easyddl run")
    named.add_argument("--hostfile", metavar="FILE", help="as for easyddl run")
    parser.add_argument(
        "--steps", type=_steps, default=30, metavar="N",
        help="steps to measure at each number of ranks (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--warmup", type=_numbers.positive, default=5, metavar="N",
        help="steps to leave out before; the first one compiles (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE",
        help="write the measurements to FILE; - writes to standard output, without the table",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=_output_files.picture, metavar="FILE.png",
        help="draw a picture (needs matplotlib: pip install easyddl[plot])",
    )  # fmt: skip
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="[--] PROGRAM ...",
        help="the program and its arguments, as in `python train.py`",
    )  # fmt: skip


def run(options):
    """Runs `easyddl scaling`.

    Returns:
        The exit status: 0, that of the job that failed, 1 if a job cannot be measured, or 2 if the
        options are wrong.
    """
    from easyddl.cli.scaling import job

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
    except job.JobFailed as failure:
        print(f"easyddl scaling: {failure}", file=sys.stderr)
        return failure.status
    _write(measurements, program, options)
    return 0


def _numbers_of_ranks(options, program):
    """The numbers of ranks in ascending order.

    Raises:
        ValueError: If the hosts cannot run one of them.
    """
    from easyddl.launch import placement
    from easyddl.launch.request import Request
    from easyddl.runtime import hostfile, hosts

    listed, source = None, "-H"
    if options.hosts is not None:
        listed = hosts.parse(options.hosts)
    elif options.hostfile is not None:
        listed, source = hostfile.read(options.hostfile), f"--hostfile {options.hostfile}"

    def size(number):
        return placement.place(Request(program, number, listed, source), os.environ).size

    if options.np is None:
        return _doubled_to(size(None))
    return sorted({size(number) for number in options.np})


def _doubled_to(largest):
    """The powers of two below a number, and the number itself."""
    return [2**power for power in range((largest - 1).bit_length())] + [largest]


def _measure(numbers, program, options):
    """Measures the script at each number of ranks, and shows each result as soon as it is there."""
    from easyddl.cli.scaling import job, table, verdict

    def say(line):
        if options.json != "-":
            print(line, flush=True)

    measurements = []
    say(_title(numbers, program, options))
    say(table.header())
    for number in numbers:
        measurements.append(job.measure(job.command(number, program, options), program))
        say(table.row(measurements[-1], measurements[0]))
    few = table.too_few(measurements, options.steps)
    say("\n".join(["", *filter(None, [few, verdict.sentence(measurements)])]))
    return measurements


def _title(numbers, program, options):
    several = len(numbers) > 1 or numbers[0] > 1
    return (
        f"{options.steps} steps, after {options.warmup} for the warm-up, on "
        f"{', '.join(map(str, numbers))} rank{'s' * several}: {shlex.join(program)}"
    )


def _write(measurements, program, options):
    from easyddl.cli.scaling import plot, table

    if options.json is not None:
        text = json.dumps(table.as_json(measurements, program), indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            pathlib.Path(options.json).write_text(text)
    if options.plot is not None:
        plot.draw(measurements, _where(program, measurements[-1].hosts), options.plot)


def _where(program, hosts):
    """The title of the picture: the script, and what it ran on."""
    from easyddl.cli.scaling.verdict import number

    counts = {
        "host": len(hosts),
        "core": sum(host["cores"] for host in hosts),
        "GPU": sum(host["gpus"] for host in hosts),
    }
    parts = [number(count, noun) for noun, count in counts.items() if count > 0]
    return f"{shlex.join(program)} on {', '.join(parts)}"
