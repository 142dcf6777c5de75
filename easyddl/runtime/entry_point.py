"""Tells whether `import easyddl` shall import Keras now, or when a public name is first used.

Importing Keras and its backend takes seconds and hundreds of megabytes. These processes do without:

- the commands that start or examine jobs, and what they start on each host;
- a notebook or a script without a launcher, which may only start ranks by `easyddl.run`.

A rank imports everything at once, because easyddl must divide the cores and the GPUs of a host
among its ranks before a framework uses them.
"""

import importlib
import os
import sys
import threading

from easyddl.runtime import launchers

_COMMANDS = ("run", "doctor", "info", "scaling", "timeline")  # of `easyddl`
_MODULES = ("easyddl.launch.", "easyddl.doctor.")  # of `python -m`

_is_command = False  # as `is_command` said while the package was imported
_light = None  # whether the package was imported without Keras; `None` before its import
_lock = threading.RLock()  # held while the package is imported again


def is_light():
    """Whether `import easyddl` leaves out the public names that need Keras, until they are used.

    The first call decides, which is that of the import itself.
    """
    global _light, _is_command
    if _light is None:
        _is_command = is_command()
        _light = _is_command or launchers.first_integer("size") is None
    return _light


def is_command():
    """Whether this process runs a command that needs no Keras. Ask while easyddl is imported."""
    arguments = getattr(sys, "argv", None) or [""]
    if arguments[0] != "-m":
        return os.path.basename(arguments[0]) == "easyddl" and _is_light(arguments[1:])
    # Python has not replaced "-m" by the module's path yet: the package is imported before.
    module = sys.orig_argv[len(sys.orig_argv) - len(arguments)]
    return module.startswith(_MODULES) or (module == "easyddl" and _is_light(arguments[1:]))


def _is_light(arguments):
    return not arguments or arguments[0].startswith("-") or arguments[0] in _COMMANDS


def load_for_script():
    """Imports what a light import has left out, unless this process runs a command."""
    if not _is_command:
        load_whole_package()


def load_whole_package():
    """Imports what a light import has left out."""
    global _light
    with _lock:
        if not _light:
            return
        _light = False
        try:
            importlib.reload(sys.modules["easyddl"])
        except BaseException:
            _light = True
            raise
