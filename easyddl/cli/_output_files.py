"""The files to which a command writes its results, such as `--json FILE` and `--plot FILE.png`."""

import argparse
import pathlib
import tempfile


def picture(text):
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
