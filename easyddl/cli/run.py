"""Starts a script on many ranks, on this host or on several hosts.

The mpirun of the MPI in use starts the job, or srun within a Slurm allocation. Without -H and
--hostfile the ranks run on the hosts of the scheduler's allocation, or on this host. Each rank is
bound to separate cores if there are enough. If a rank fails, all ranks are ended. An error of
several ranks is shown once. The last lines of the output name the first rank that failed and its
host, with its message or its last lines. The exit status is that of this rank.
"""

import argparse
import dataclasses
import os
import re
import shlex
import sys

from easyddl.cli import _hosts, _numbers

SUMMARY = "start a script on many ranks, on one or several hosts"


def add_arguments(parser):
    """Adds the options of `easyddl run`."""
    where = parser.add_argument_group("ranks and hosts")
    where.add_argument(
        "-np", "-n", type=_numbers.positive, metavar="N", dest="np",
        help="number of ranks (default: the number of slots of all hosts; on this host alone, the "
        "number of GPUs, or of physical cores without GPUs)",
    )  # fmt: skip
    _hosts.add_arguments(
        where,
        "hosts, and the slots of each; `h[1-16]:4` names 16 hosts",
        "file with one host on each line: `h1:4` or `h1 slots=4`",
    )
    grouped = where.add_mutually_exclusive_group()
    grouped.add_argument(
        "--racks",
        metavar="x,x,y,y",
        help="the rack of each host, to send less data between racks; or the aisle too, as in "
        "a/x,a/y,b/z,b/z",
    )
    grouped.add_argument(
        "--plan", metavar="FILE", help="the racks and their order, in a file of `easyddl plan -o`"
    )
    where.add_argument(
        "--cpus", metavar="LIST", help="CPUs that the ranks may use, all on this host: `0-3,8` "
        "(default: those of this process)",
    )  # fmt: skip
    where.add_argument("--nic", default="", metavar="NAMES", help="network interfaces to use")
    where.add_argument("--tcp", action="store_true", help="use plain TCP between hosts")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", metavar="DIR", help="write each rank's output to DIR/RANK.log, on its host"
    )
    output.add_argument(
        "--prefix", action=argparse.BooleanOptionalAction, default=True,
        help="begin each line with the number of its rank",
    )  # fmt: skip
    output.add_argument(
        "--timeline", metavar="DIR", help="record trace files in DIR, for `easyddl timeline`"
    )
    output.add_argument(
        "--dry-run", action="store_true", help="print the command that starts the ranks, and stop"
    )
    told = output.add_mutually_exclusive_group()
    told.add_argument(
        "--verbose", action="store_true", help="also print the launcher's variables and the CPUs"
    )
    told.add_argument("--quiet", action="store_true", help="do not print how the ranks are started")
    how = parser.add_argument_group("how the ranks are started")
    how.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable on all ranks, in addition to those of this process",
    )  # fmt: skip
    how.add_argument(
        "--launcher", choices=["auto", "hydra", "openmpi", "srun"], default="auto",
        help="hydra is the mpirun of MPICH and Intel MPI (default: srun in a Slurm allocation if "
        "it can start this MPI, else the mpirun that is found)",
    )  # fmt: skip
    how.add_argument("--rsh", default="", metavar="PROGRAM", help="program to use instead of ssh")
    how.add_argument(
        "--mpi-arg", action="append", default=[], metavar="ARG", dest="mpi_args",
        help="a further argument of the launcher, as in --mpi-arg=-verbose",
    )  # fmt: skip
    how.add_argument(
        "--start-timeout", type=_numbers.seconds, default=45.0, metavar="S",
        help="seconds until all ranks have started (default: 45)",
    )  # fmt: skip
    how.add_argument(
        "--grace", type=_numbers.seconds, default=5.0, metavar="S",
        help="seconds from the signal that ends the ranks until they are killed (default: 5)",
    )  # fmt: skip
    how.add_argument(
        "--host-timeout", type=_numbers.seconds, default=20.0, metavar="S",
        help="seconds after which a host that does not answer counts as lost (default: 20)",
    )  # fmt: skip
    again = parser.add_argument_group("restarts after a rank or a host was lost")
    again.add_argument(
        "--restarts", type=_numbers.positive, metavar="N",
        help="start the job again, at most N times, on the hosts that answer; it resumes from the "
        "backups of `ddl.BackupAndRestore`",
    )  # fmt: skip
    again.add_argument(
        "--min-np", type=_numbers.positive, metavar="A",
        help="number of slots that a restart needs (default: 1)",
    )  # fmt: skip
    again.add_argument(
        "--wait", type=_numbers.seconds, metavar="S",
        help="seconds to wait for hosts if there are fewer slots, before the job ends with status "
        "75 (default: 0)",
    )  # fmt: skip
    again.add_argument(
        "--restart-on-error", action="store_true", help="also restart after an error of the script"
    )
    # A socket of the process that uses `easyddl.Ranks`, for the output of its calls.
    how.add_argument("--calls", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="[--] PROGRAM ...",
        help="the program and its arguments, as in `python train.py`",
    )  # fmt: skip


def run(options):
    """Runs `easyddl run`.

    Returns:
        The exit status of the job; 2 if the options are wrong.
    """
    from easyddl.launch.start import placement

    try:
        request = _request(options)
        placed = placement.place(request, os.environ)
        _require_script(request.program, placed.size)
        if (options.min_np or 1) > placed.size:
            raise ValueError(f"`--min-np {options.min_np}` can never be met by {placed}.")
        made, line = _prepare(options, request, placed)
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(f"easyddl run: {error}\n")
        return 2
    if options.dry_run:
        return 0
    try:
        if options.restarts is not None:
            return _run_with_restarts(options, request, placed, made, line)
        return _run(made, placed, line, options).status
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"easyddl run: {error}\n")
        return 1


def _request(options):
    from easyddl.launch.start import allowed_cpus, environment
    from easyddl.launch.start.request import Request
    from easyddl.machine import addresses

    program = options.program[options.program[:1] == ["--"] :]
    if not program:
        raise ValueError("PROGRAM is missing, as in `easyddl run -np 4 python train.py`.")
    if not options.restarts and (options.min_np or options.wait or options.restart_on_error):
        raise ValueError("`--min-np`, `--wait` and `--restart-on-error` need `--restarts N`.")
    if options.restarts and options.calls is not None:
        raise ValueError("`--restarts` restarts scripts, not the ranks of `easyddl.Ranks`.")
    listed, source = _hosts.listed(options)
    cpus = None if options.cpus is None else allowed_cpus.read(options.cpus)
    if options.nic:
        addresses.of_interfaces(options.nic)
    settings = environment.variables(options.env, os.environ)
    environment.leave_outer_job(os.environ)
    directory = _current_directory()
    if options.racks:
        settings["EASYDDL_RACKS"] = options.racks
    if options.timeline:
        settings.setdefault("EASYDDL_TIMELINE", os.path.abspath(options.timeline))
    fields = {field.name for field in dataclasses.fields(Request)}
    as_given = {name: value for name, value in vars(options).items() if name in fields}
    read = {"program": program, "hosts": listed, "source": source, "cpus": cpus}
    return Request(**{**as_given, **read, "environment": settings, "directory": directory})


def _require_script(program, size):
    """Raises an error if ranks other than rank 0 would read an empty script and end."""
    is_python = re.fullmatch(r"python[\d.]*", os.path.basename(program[0]))
    if is_python and program[1:] in ([], ["-"]) and size > 1:
        raise ValueError(
            "Python would read the script from standard input, which only rank 0 gets. Pass a file "
            "that all ranks can read, as in `easyddl run -np 4 python train.py`."
        )


def _follow_plan(path, request, placed):
    """Returns the request with what a plan says for all ranks. It may be that of EASYDDL_PLAN.

    The ranks do not get the file, because the plan has the hosts' names of the user, which may be
    aliases, and because the file may be on this host alone.
    """
    settings = dict(request.environment)
    given = {**os.environ, **settings}
    argument = "EASYDDL_PLAN" if path is None else "--plan"
    path = given.get("EASYDDL_PLAN", "").strip() if path is None else path
    if argument == "--plan" and not path:
        raise ValueError("`--plan` must be the path of a file. Received: ''")
    if path:
        from easyddl.plan import job_hosts  # it loads the engine

        hosts = [host.name for host in placed.hosts]
        found = job_hosts.of_hosts(path, hosts, argument, given)
        settings.update(EASYDDL_RACKS=found["racks"], EASYDDL_HOST_ORDER=found["host_order"])
        settings["EASYDDL_PLAN"] = ""
        if not any(given.get(f"EASYDDL_{name}", "").strip() for name in ("ALGORITHM", "ROUTE")):
            settings["EASYDDL_ALGORITHM"] = found["algorithm"]
    return dataclasses.replace(request, environment=settings)


def _prepare(options, request, placed):
    """Returns the request with what a plan says, and the `CommandLine`. Prints both."""
    from easyddl.launch.start import command_line

    made = _follow_plan(options.plan, request, placed)
    line = command_line.make(made, placed, os.environ)
    if options.dry_run or not options.quiet:
        _tell(made, placed, line)
    return made, line


def _current_directory():
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ValueError(
            "The current directory does not exist any more. The ranks run in it, so change to "
            "another directory first. If it was made again, `cd .` is enough."
        ) from None


def _tell(request, placed, line):
    """Prints the program, the placement of the ranks, and the launcher's command."""
    sys.stderr.write(f"easyddl: {placed}: {shlex.join(request.program)}\n")
    settings = {**line.environment, **request.environment} if request.verbose else {}
    shown = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    sys.stderr.write(f"easyddl: {' '.join([*shown, shlex.join(line.arguments)])}\n")


def _run(request, placed, line, options, hear=None):
    """Runs one start. Returns its `Outcome`."""
    from easyddl.launch.output.call_output import CallOutput
    from easyddl.launch.supervise.job import Job

    calls = None if options.calls is None else CallOutput(options.calls)
    return Job(request, placed, line, calls, hear).run()


def _run_with_restarts(options, request, first, made, line):
    """Runs a job of several starts, the first of which is prepared. Returns its exit status."""
    from easyddl.checkpoint import start_claim
    from easyddl.launch.supervise import restarts

    job, folder = os.urandom(8).hex(), options.output

    def start(number, placed, hear):
        own, command, output = made, line, folder
        if number > 1:
            # What the user wrote is in the order of the first hosts. A plan has their names.
            of_first = {"EASYDDL_RACKS": "", "EASYDDL_HOST_ORDER": ""}
            dropped = {} if placed.hosts == first.hosts else of_first
            again = dataclasses.replace(request, environment={**request.environment, **dropped})
            own, command = _prepare(options, again, placed)
            output = folder and os.path.join(folder, f"start-{number}")
        begun = {start_claim.NUMBER: str(number), start_claim.JOB: job}
        own = dataclasses.replace(own, environment={**own.environment, **begun}, output=output)
        return _run(own, placed, command, options, hear)

    most, min_np, wait = options.restarts, options.min_np or 1, options.wait or 0.0
    starts = restarts.Restarts(request, first, line, most, min_np, wait, options.restart_on_error)
    return starts.run(start)
