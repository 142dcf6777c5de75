"""Starts a script on many ranks, on this machine or on several hosts.

The job is started by the mpirun of the MPI in use, or by srun within an allocation of Slurm.
Without -H and --hostfile the ranks run on the hosts of the scheduler's allocation, or on this
machine. Each rank gets cores of its own where there are enough. If a rank fails, all ranks are
ended. The number, the host and the last lines of the first one that failed come last, and its exit
status is that of the command.
"""

import argparse
import os
import shlex
import sys

from easyddl.cli import _numbers

SUMMARY = "start a script on many ranks, on one or several hosts"


def add_arguments(parser):
    """Adds the options of `easyddl run`."""
    where = parser.add_argument_group("ranks and hosts")
    where.add_argument(
        "-np", "-n", type=_numbers.positive, metavar="N", dest="np",
        help="number of ranks (default: as many as the hosts have slots; on this machine as many "
        "as GPUs, or else physical cores)",
    )  # fmt: skip
    named = where.add_mutually_exclusive_group()
    named.add_argument("-H", "--hosts", metavar="h1:4,h2:4", help="hosts, and the slots of each")
    named.add_argument(
        "--hostfile", metavar="FILE", help="file with a host a line: `h1:4` or `h1 slots=4`"
    )
    where.add_argument(
        "--racks", metavar="x,x,y,y", help="the rack of each host: less data then leaves a rack"
    )
    where.add_argument(
        "--cpus", metavar="LIST", help="CPUs that the ranks may use, all on this machine: `0-3,8` "
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
    output.add_argument("--dry-run", action="store_true", help="print what would be run, and stop")
    told = output.add_mutually_exclusive_group()
    told.add_argument(
        "--verbose", action="store_true", help="print variables of the launcher and CPUs, too"
    )
    told.add_argument("--quiet", action="store_true", help="do not print how the ranks are started")
    how = parser.add_argument_group("how the ranks are started")
    how.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable on all ranks, besides those of this process",
    )  # fmt: skip
    how.add_argument(
        "--launcher", choices=["auto", "hydra", "openmpi", "srun"], default="auto",
        help="hydra is the mpirun of MPICH and Intel MPI (default: srun in an allocation of Slurm "
        "where it can start this MPI, else the mpirun that is found)",
    )  # fmt: skip
    how.add_argument("--rsh", default="", metavar="PROGRAM", help="program to use in place of ssh")
    how.add_argument(
        "--mpi-arg", action="append", default=[], metavar="ARG",
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
        help="seconds after which a host that does not answer is lost (default: 20)",
    )  # fmt: skip
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="[--] PROGRAM ...",
        help="the program and its arguments, as in `python train.py`",
    )  # fmt: skip


def run(options):
    """Runs `easyddl run`.

    Returns:
        The exit status of the job; 2 if the options are wrong.
    """
    from easyddl.launch import command_line, placement

    try:
        request = _request(options)
        placed = placement.place(request, os.environ)
        line = command_line.make(request, placed, os.environ)
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(f"easyddl run: {error}\n")
        return 2
    if options.dry_run or not options.quiet:
        _tell(request, placed, line)
    if options.dry_run:
        return 0
    return _run(request, placed, line, options)


def _request(options):
    from easyddl.launch import addresses, allowed_cpus, environment
    from easyddl.launch.request import Request
    from easyddl.runtime import hostfile, hosts

    program = options.program[options.program[:1] == ["--"] :]
    if not program:
        raise ValueError("PROGRAM is missing, as in `easyddl run -np 4 python train.py`.")
    listed, source = None, "-H"
    if options.hosts is not None:
        listed = hosts.parse(options.hosts)
    elif options.hostfile is not None:
        listed, source = hostfile.read(options.hostfile), f"--hostfile {options.hostfile}"
    cpus = None
    if options.cpus is not None:
        cpus = allowed_cpus.read(options.cpus)
        allowed_cpus.check(cpus, "--cpus")
    if options.nic:
        addresses.of_interfaces(options.nic)
    settings = environment.variables(options.env, os.environ)
    if options.racks:
        settings["EASYDDL_RACKS"] = options.racks
    return Request(
        program,
        options.np,
        listed,
        source,
        options.output,
        options.prefix,
        settings,
        options.nic,
        options.tcp,
        options.launcher,
        options.rsh,
        options.mpi_arg,
        options.start_timeout,
        options.grace,
        options.host_timeout,
        options.verbose,
        cpus,
    )


def _tell(request, placed, line):
    """Prints what is run, and how."""
    sys.stderr.write(f"easyddl: {placed}: {shlex.join(request.program)}\n")
    settings = {**line.environment, **request.environment} if request.verbose else {}
    shown = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    sys.stderr.write(f"easyddl: {' '.join([*shown, shlex.join(line.arguments)])}\n")


def _run(request, placed, line, options):
    from easyddl.launch.job import Job
    from easyddl.launch.screen import Screen

    timeline = os.path.abspath(options.timeline) if options.timeline else None
    screen = Screen(placed.size, request.prefix)
    try:
        return Job(request, placed, line, screen, timeline).run()
    except (OSError, RuntimeError) as error:
        sys.stderr.write(f"easyddl run: {error}\n")
        return 1
