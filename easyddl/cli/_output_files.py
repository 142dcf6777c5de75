"""The files to which a command writes its results, such as `--json FILE` and `--plot FILE.png`."""

import argparse
import json
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
        "--plot", type=_picture, metavar="FILE.png",
        help="draw a picture (needs matplotlib: pip install easyddl[plot])",
    )  # fmt: skip


def write_json(content, path):
    """Writes JSON data to a file, or to standard output if the path is `-`."""
    text = json.dumps(content, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(path).write_text(text)


def _picture(text):
    """Checks the file name of a picture, and returns it."""
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"must end in .png. Received: {text!r}")
    return text


def problem(options):
    """Returns the reason why the files cannot be written; `None` if they can.

    Args:
        options: Namespace. `json` and `plot`, each the name of a file or `None`. The JSON file `-`
            is standard output.
    """
    for name in ("json", "plot"):
        path = getattr(options, name)
        if path is None or (name == "json" and path == "-"):
            continue
        if reason := file_problem(name, path):
            return reason
    return _plot_problem() if options.plot is not None else None


def file_problem(name, path):
    """Returns the reason why a file cannot be written; `None` if it can.

    Args:
        name: String. The name of the option, without the hyphens.
        path: String.
    """
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
