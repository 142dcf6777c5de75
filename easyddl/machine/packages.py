"""The installed Python packages."""

import importlib.metadata


def version_of(*names):
    """Returns the version of the first of some packages that is installed; `None` if none is.

    Args:
        *names: Strings.
    """
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
