"""The backend that Keras selects when it is imported."""

import json
import os
import pathlib

_DEFAULT = "tensorflow"


def selected():
    """Returns the name of the backend that Keras would select if the script imported it now.

    Keras reads KERAS_BACKEND, or else its settings file, only when it is imported.
    """
    return os.environ.get("KERAS_BACKEND") or _in_settings()


def _in_settings():
    try:
        settings = json.loads((_home() / "keras.json").read_text())
        return str(settings.get("backend", _DEFAULT))
    except (OSError, ValueError, AttributeError):
        return _DEFAULT


def _home():
    """Returns Keras's own folder, which contains its settings file."""
    if "KERAS_HOME" in os.environ:
        return pathlib.Path(os.path.expanduser(os.environ["KERAS_HOME"]))
    user = os.path.expanduser("~")
    return pathlib.Path(user if os.access(user, os.W_OK) else "/tmp", ".keras")
