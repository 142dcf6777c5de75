"""Decides whether `import easyddl` imports Keras at once, or later when it is needed.

Keras reads its settings, such as KERAS_BACKEND, only when it is imported. Importing it also takes
seconds and hundreds of megabytes. So `import easyddl` imports Keras only if the script has already
imported it. Otherwise it is a light import. The rest of the package is imported at the first of
these events:

- The script uses a public name that needs Keras.
- The script imports Keras itself, or a module of easyddl that needs Keras. easyddl patches
  `keras.Model.fit`, and must do so before `model.fit(callbacks=[ddl.DDLCallback()])` looks that
  method up.
- In a rank, the script imports the framework that Keras would select as its backend now. easyddl
  must divide the cores and the GPUs of a host among its ranks before the framework uses them.

In the commands that start or examine jobs, and in the processes that they start on each host, only
the first event has this effect.
"""

import importlib
import os
import sys
import threading

from easyddl.hosts import launched_process
from easyddl.runtime import command_process, keras_backend

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
    "steps",
    "training",
)

_WATCHED = frozenset(
    ("keras", "tensorflow", "jax", "torch", *(f"easyddl.{folder}" for folder in _KERAS_FOLDERS))
)

_is_command = False  # the result of `command_process.is_command` while the package was imported
_is_rank = False  # whether a launcher started this process
_light = None  # whether the package was imported without Keras; `None` before its import
_lock = threading.RLock()  # held while the package is imported again


def is_light():
    """Returns whether `import easyddl` leaves out the public names that need Keras.

    The first call, which the import itself makes, decides this.
    """
    global _light, _is_command, _is_rank
    if _light is None:
        _is_command = command_process.is_command()
        # `is_worker` sets a mark in the environment, from which a descendant learns that it is not
        # a rank. So a rank must call it before its script can start other processes.
        is_launched = launched_process.size() is not None
        _is_rank = not _is_command and is_launched and not launched_process.is_worker()
        _light = _is_command or not _is_due()
        if not _is_command:
            sys.meta_path.insert(0, _ImportWatch)
    return _light


def _is_due():
    """Returns whether an import of this process requires the rest of the package now."""
    return "keras" in sys.modules or (_is_rank and keras_backend.selected() in sys.modules)


def silence_other_ranks():
    """Makes only the root print TensorFlow's informational messages, unless the user set a level.

    TensorFlow reads its log level once, when its libraries are loaded. So call this before any
    module that imports a framework is imported. Every rank still prints the messages that the
    libraries print before they read the level, and its own warnings and errors.
    """
    if launched_process.rank() != 0:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def become_script():
    """Makes a process that runs a command import Keras as a script does from now on."""
    global _light
    if _is_command:
        _light = None
        importlib.reload(sys.modules["easyddl"])


def become_rank():
    """Records that this process is a rank, if only MPI tells so and no launcher's variable."""
    global _is_rank
    _is_rank = not _is_command
    if _is_rank and _light and _is_due():
        load_whole_package()


def load_whole_package():
    """Imports the modules that a light import has left out."""
    global _light
    if not _light:
        return
    silence_other_ranks()
    # Do not hold the lock here: another thread may be importing Keras, and then need the lock.
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


class _ImportWatch:
    """A finder that notices when the script has imported a module of `_WATCHED`.

    The other finders search for the module. Libraries also search for Keras without importing it,
    so the watch lasts until the module is executed.
    """

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname not in _WATCHED:
            return None
        others = [each for each in sys.meta_path if each is not cls and hasattr(each, "find_spec")]
        specs = (each.find_spec(fullname, path, target) for each in others)
        spec = next((each for each in specs if each is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader)
        return spec


class _Depth(threading.local):
    """The number of watched modules that this thread is executing, because imports nest."""

    value = 0


_depth = _Depth()


class _WatchedLoader:
    """Executes a module with its own loader, and then imports the rest of easyddl if required.

    The rest is imported after the outermost watched module of this thread: until then the outer
    modules are not complete, and TensorFlow hides errors of its own import of Keras.

    Args:
        loader: The loader that the other finders returned for the module.
    """

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        _depth.value += 1
        try:
            self._loader.exec_module(module)
        finally:
            _depth.value -= 1
        if module.__name__ == "keras":
            _refuse_another(module)
        # Next, Python executes a module inside of a folder of easyddl, which may need any other.
        is_of_easyddl = module.__name__.startswith("easyddl.")
        if _depth.value == 0 and _light and (is_of_easyddl or _is_due()):
            load_whole_package()


def _refuse_another(keras):
    """Raises an error if Keras is imported a second time after easyddl has imported it.

    Args:
        keras: The module that has just been executed.
    """
    used = getattr(sys.modules.get("easyddl.backends"), "keras", keras)
    if used is not keras:
        raise RuntimeError(
            "Keras was imported a second time, as `keras.config.set_backend` does, but easyddl "
            "already uses the first import. Select the backend earlier: set KERAS_BACKEND above "
            "`import keras`, or call `keras.config.set_backend` above `import easyddl`. "
            f"Received: backend {keras.backend.backend()!r}"
        )
