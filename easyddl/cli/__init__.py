"""The command `easyddl`: one module per subcommand.

The module of a subcommand defines `SUMMARY` (one line), `add_arguments(parser)` and `run(options)`,
which returns the exit status. It imports heavy modules, such as NumPy or the engine, only in `run`.
"""

import argparse
import importlib
import os
import pkgutil
import sys

from easyddl.runtime import version


def main(arguments=None):
    """Runs the command line.

    Args:
        arguments: List of strings. Defaults to `None`, the arguments of the process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="easyddl", description="Synchronous data parallelism for Keras 3 over MPI."
    )
    parser.add_argument("--version", action="version", version=f"easyddl {version.version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if name.startswith("_"):
            continue
        module = importlib.import_module(f"easyddl.cli.{name}")
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.__doc__.replace("`", "")
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, fail=command.error)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.fail(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return options.run(options)
    except BrokenPipeError:  # whoever read the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
