"""The installed version of easyddl."""

import importlib.metadata


def version():
    """Returns the version, such as `0.1.0`; `unknown` if the package is not installed."""
    try:
        return importlib.metadata.version("easyddl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
