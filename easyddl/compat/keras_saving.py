"""Saving: the functions of Keras that write model files, and their output."""

import contextlib
import contextvars
import functools
import sys

from easyddl.compat import patches
from easyddl.compat.names import Name

_BROKEN = "if several ranks save a model to the same path at once, the file may be corrupt"

# Keras's public functions and methods look these up in their modules at each call.
_PRIVATE_WRITERS = (
    Name("keras.src.saving.saving_lib", "save_model(filepath)", _BROKEN),
    Name("keras.src.saving.saving_lib", "save_weights_only(filepath)", _BROKEN),
    Name("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5(filepath)", _BROKEN),
)
_PUBLIC_WRITERS = (
    Name("keras.Model", "export", _BROKEN),
    Name("keras.export.ExportArchive", "write_out", _BROKEN),
    Name("keras.saving.KerasFileEditor", "save", _BROKEN),  # in newer versions of Keras
)
_IO = "keras.src.utils.io_utils"
_PROMPT = Name(
    _IO,
    "ask_to_proceed_with_overwrite",
    "ranks that save with overwrite=False wait for an answer that nobody can give",
)
_PRINT = Name(_IO, "print_msg(message)", "model.export() prints a temporary path")
_REMOTE = Name(
    "keras.src.utils.file_utils",
    "is_remote_path",
    "paths of object stores that are not URLs are treated as local paths",
)

_MODULES = "keras.src.utils.module_utils"
_IMPORTED = "a fit on JAX or PyTorch imports TensorFlow if it is installed"
_LAZY_TENSORFLOW = Name(_MODULES, "tensorflow", _IMPORTED)
_AVAILABLE = Name(f"{_MODULES}.LazyModule", "_available", _IMPORTED, is_set=True)

NAMES = (*_PRIVATE_WRITERS, _PROMPT, _PRINT, _REMOTE, _LAZY_TENSORFLOW, _AVAILABLE)

# The paths that are printed in place of others, in this thread: see `shown_as`.
_shown: contextvars.ContextVar[tuple[tuple[str, str], ...]] = contextvars.ContextVar(
    "shown", default=()
)


def writers():
    """Returns the functions that write model files.

    Each takes a model or another object, then the path, and then other arguments.

    Returns:
        List of pairs: the owner, which is a class or a module, and the name.
    """
    names = (*_PRIVATE_WRITERS, *_PUBLIC_WRITERS)
    return [(name.find_owner(), name.name) for name in names if name.is_there()]


def prompts():
    """Returns the functions that ask the user whether to overwrite the file at a path.

    Returns:
        List of pairs, as `writers` returns them.
    """
    return [(_PROMPT.find_owner(), _PROMPT.name)] if _PROMPT.is_there() else []


def is_remote(path):
    """Returns whether Keras treats a path as a path of an object store.

    Args:
        path: String.
    """
    return "://" in path or (_REMOTE.is_there() and _REMOTE.get()(path))


@contextlib.contextmanager
def without_tensorflow():
    """Returns a context in which Keras serializes objects without importing TensorFlow.

    Otherwise Keras imports TensorFlow to check whether an object has one of its types.
    """
    are_there = _LAZY_TENSORFLOW.is_there() and _AVAILABLE.is_there()
    if "tensorflow" in sys.modules or not are_there:
        yield
        return
    with patches.replaced(_LAZY_TENSORFLOW.get(), _AVAILABLE.name, False):
        yield


def install_shown_as():
    """Patches the function with which Keras prints paths, for `shown_as`."""
    if _PRINT.is_there():
        patches.install(_PRINT.find_owner(), _PRINT.name, _printing_shown)


def _printing_shown(original):
    @functools.wraps(original)
    def print_message(message, *args, **kwargs):
        message = str(message)
        for temporary, path in _shown.get():
            message = message.replace(temporary, path)
        original(message, *args, **kwargs)

    return print_message


@contextlib.contextmanager
def shown_as(temporary, path):
    """Returns a context in which Keras prints another path in place of a temporary one.

    Args:
        temporary: String. The path that is passed to Keras.
        path: String. The path that Keras prints, and that its error messages contain.
    """
    token = _shown.set(((temporary, path), *_shown.get()))
    try:
        yield
    except Exception as error:
        error.args = tuple(_replaced(each, temporary, path) for each in error.args)
        if isinstance(error, OSError):
            error.strerror = _replaced(error.strerror, temporary, path)
            if error.filename is not None:  # `None` would be printed
                error.filename = _replaced(error.filename, temporary, path)
        raise
    finally:
        _shown.reset(token)


def _replaced(value, old, new):
    return value.replace(old, new) if isinstance(value, str) else value
