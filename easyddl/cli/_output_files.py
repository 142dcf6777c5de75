"""The files to which a command writes its results, such as `--json FILE` and `--plot FILE.png`."""

import argparse
import json
import os
import pathlib
import sys
import tempfile


def add_arguments(parser):
    """Adds `--json` and `--plot`."""
    parser.add_argument(
        "--json", metavar="FILE",
        help="write the measurements to FILE; - writes to standard output, without the table",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=picture(".png"), metavar="FILE.png",
        help="draw a picture (needs matplotlib: pip install easyddl[plot])",
    )  # fmt: skip


def picture(ending):
    """Returns a function that checks the file name of a picture, and returns it."""

    def check(text):
        if not text.lower().endswith(ending):
            raise argparse.ArgumentTypeError(f"must end in {ending}. Received: {text!r}")
        return text

    return check


def write(options, content, plot):
    """Writes the files of `--json` and `--plot`.

    Args:
        options: Namespace. See `problem`.
        content: JSON data.
        plot: Function of a path, which draws the picture.
    """
    text = json.dumps(content, indent=1) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json is not None:
        pathlib.Path(options.json).write_text(text)
    if options.plot is not None:
        plot(options.plot)


def problem(options):
    """Returns the reason why the files cannot be written; `None` if they can.

    Args:
        options: Namespace. `json` and `plot`, each the name of a file or `None`. The JSON file `-`
            is standard output.
    """
    names = ["plot"] if options.json == "-" else ["json", "plot"]
    return files_problem(options, names) or (_plot_problem() if options.plot is not None else None)


def files_problem(options, written, read=()):
    """Returns the reason why the files of some options cannot be written; `None` if they can.

    Args:
        options: Namespace.
        written: List of strings. The names of the options, without the hyphens.
        read: List of strings. Options with files that must not be written over.
    """
    taken = {}
    for name in (*read, *written):
        path = getattr(options, name)
        if path is None:
            continue
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name:
            return f"argument --{name}: {path} is the file of --{other}, too"
        if name in written and (reason := _file_problem(name, path)):
            return reason
    return None


def _file_problem(name, path):
    path = pathlib.Path(path)
    if path.is_dir():
        return f"argument --{name}: {str(path)!r} is a directory"
    if not path.parent.is_dir():
        return f"argument --{name}: there is no directory {str(path.parent)!r}"
    try:
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return f"argument --{name}: {str(path)!r} cannot be written: {error.strerror}"
    return None


def _plot_problem():
    try:
        import matplotlib.figure  # noqa: F401 - checks only that it can be imported
    except ImportError as error:
        return (
            "argument --plot: needs matplotlib: `pip install matplotlib`, or the extra "
            f"`easyddl[plot]` ({error})"
        )
    return None
