"""The command `easyddl`, with one module for each subcommand.

The module of a subcommand defines `SUMMARY` (one line), `add_arguments(parser)` and `run(options)`,
which returns the exit status. It imports heavy modules, such as NumPy or the engine, only in `run`.
"""

import argparse
import importlib
import os
import pkgutil
import re
import signal
import sys

from easyddl.machine.packages import version_of
from easyddl.runtime import command_process, console


def main(arguments=None):
    """Runs the command line.

    Args:
        arguments: List of strings. Defaults to `None`, the arguments of the process.

    Returns:
        The exit status.
    """
    _open_closed_streams()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except OSError as error:  # such as of a full disk
        is_unread = isinstance(error, BrokenPipeError)  # `head`, for example, has ended
        if not is_unread:
            console.say(error)
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # flushed by the interpreter at exit
            os.dup2(null, stream.fileno())
        return 128 + signal.SIGPIPE if is_unread else 1  # as of other tools in a shell
    except KeyboardInterrupt:
        sys.stderr.write("easyddl: interrupted\n")
        return 128 + signal.SIGINT


def _open_closed_streams():
    """Replaces streams that the shell has closed, as `>&-` does. The launcher has the same ones."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "w"))  # noqa: SIM115 - open until the end


class _Parser(argparse.ArgumentParser):
    """Adds to an error which option has one dash in place of two.

    `mpirun` and other launchers accept `-hostfile` for `--hostfile`. Here it is `-h` with a value,
    so that the error of argparse is about `--help`.
    """

    _arguments = ()

    def parse_known_args(self, args=None, namespace=None):
        self._arguments = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message):
        options = re.findall(r"--[\w-]+", self.format_usage())
        for argument in self._arguments:
            meant = "-" + argument.partition("=")[0]
            if meant in options:
                message += f". Write `{meant}`, with two dashes"
                break
        super().error(message)


def _run(arguments):
    parser = _Parser(
        prog="easyddl", description="Synchronous data parallelism for Keras 3 over MPI."
    )
    version = version_of("easyddl")
    parser.add_argument("--version", action="version", version=f"easyddl {version}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if name.startswith("_"):
            continue
        module = importlib.import_module(f"easyddl.cli.{name}")
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=(module.__doc__ or module.SUMMARY).replace("`", ""),  # `python -OO`
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, fail=command.error)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.fail(f"unrecognized arguments: {' '.join(unknown)}")
    command_process.raise_on_ctrl_c()
    return options.run(options)
