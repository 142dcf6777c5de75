"""The version of easyddl that is installed."""

import importlib.metadata


def version():
    """The version, such as `0.1.0`; `unknown` if the package is used without being installed."""
    try:
        return importlib.metadata.version("easyddl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
