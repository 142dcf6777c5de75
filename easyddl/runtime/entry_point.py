"""Tells whether `import easyddl` shall import Keras now, or when it is needed.

Importing Keras and its backend takes seconds and hundreds of megabytes. These processes do without:

- the commands that start or examine jobs, and what they start on each host;
- a notebook or a script without a launcher, which may only start ranks by `easyddl.run`. What a
  light import has left out follows when the first public name that needs Keras is used, or when the
  script imports Keras itself: easyddl patches `keras.Model.fit`, and must do so before
  `model.fit(callbacks=[ddl.DDLCallback()])` looks that method up.

A rank imports everything at once, because easyddl must divide the cores and the GPUs of a host
among its ranks before a framework uses them.
"""

import importlib
import importlib.util
import os
import sys
import threading

from easyddl.runtime import launchers

_COMMANDS = ("run", "doctor", "info", "scaling", "timeline")  # of `easyddl`
_MODULES = ("easyddl.launch.", "easyddl.doctor.")  # of `python -m`

# The folders of easyddl whose import imports Keras.
_KERAS_FOLDERS = (
    "backends",
    "callbacks",
    "checkpoint",
    "collectives",
    "compat",
    "data",
    "layers",
    "optimizers",
    "reducer",
    "training",
)

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
        has_launcher = launchers.first_integer("size") is not None
        _light = _is_command or not (has_launcher or "keras" in sys.modules)
        if _light and not _is_command:
            sys.meta_path.insert(0, _KerasFinder)
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
    if not _light:
        return
    # Not while holding the lock: another thread may import Keras now, and then ask for the lock.
    importlib.import_module("easyddl.runtime.startup_logs")
    importlib.import_module("keras")
    with _lock:
        if not _light:
            return
        _light = False
        try:
            importlib.reload(sys.modules["easyddl"])
        except BaseException:
            _light = True
            raise


class _KerasFinder:
    """Has the script's own import of Keras load what a light import of easyddl has left out."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname != "keras":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_load(module):
            execute(module)
            # A module of easyddl that imports Keras is not complete yet: the rest follows later.
            if not any(f"easyddl.{folder}" in sys.modules for folder in _KERAS_FOLDERS):
                load_for_script()

        spec.loader.exec_module = execute_and_load
        return spec
