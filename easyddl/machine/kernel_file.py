"""Files by which the kernel reports its state, in /proc and /sys."""


def read_text(path):
    """Returns the text of a file without white space around it; empty if it cannot be read.

    Args:
        path: `pathlib.Path`.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
