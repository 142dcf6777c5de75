"""Functions and their results as bytes, by cloudpickle."""

import functools
import io
import linecache
import os
import pickle
import types

_MISSING = (
    "easyddl.run and easyddl.Ranks need the package cloudpickle on every host: "
    '`pip install "easyddl[notebook]"`, or `pip install cloudpickle`.'
)
_NO_FILE = "<unknown>"  # the file name of code whose own name is pickled beside it


def require():
    """Imports cloudpickle.

    Returns:
        The module `cloudpickle`.

    Raises:
        ModuleNotFoundError: If it is not installed. The message names the extra that has it.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_MISSING, name="cloudpickle") from error
    return cloudpickle


@functools.cache
def _pickler():
    """Returns the class by which `dumps` pickles."""

    class Pickler(require().Pickler):
        """Keeps the file names of functions that are pickled by value.

        Tracebacks need them: see `sources`. cloudpickle 3.1.3 and later replace them.
        """

        def reducer_override(self, thing):
            if isinstance(thing, types.CodeType) and thing.co_filename != _NO_FILE:
                return _with_file_name, (thing.replace(co_filename=_NO_FILE), thing.co_filename)
            return super().reducer_override(thing)

    return Pickler


def _with_file_name(code, name):
    return code.replace(co_filename=name)


def _pickled(thing, **options):
    file = io.BytesIO()
    _pickler()(file, protocol=5, **options).dump(thing)
    return file.getvalue()


def dumps(thing):
    """Pickles an object. Functions and classes of a notebook are pickled by value.

    Args:
        thing: The object.

    Returns:
        List of buffers. The first holds the pickle, the others large arrays, which are not copied.
    """
    arrays: list[pickle.PickleBuffer] = []
    data = _pickled(thing, buffer_callback=arrays.append)
    try:
        return [data, *(each.raw() for each in arrays)]
    except BufferError:  # an array that is not contiguous
        return [_pickled(thing)]


def loads(parts):
    """Restores the object that `dumps` pickled.

    Args:
        parts: List of buffers. Arrays of the object use their memory, if it is writable.
    """
    require()
    return pickle.loads(parts[0], buffers=parts[1:])


def sources(function):
    """Returns the source of a function that comes from no file, for tracebacks on the ranks.

    Args:
        function: Any callable.

    Returns:
        Dictionary from the name of a notebook's cell to its list of lines.
    """
    found = {}
    if isinstance(function, types.FunctionType):
        for name in ("", *function.__code__.co_names):
            each = function.__globals__.get(name) if name else function
            if isinstance(each, types.FunctionType):
                file = each.__code__.co_filename
                entry = linecache.cache.get(file)
                if entry is not None and len(entry) == 4 and not os.path.exists(file):
                    found[file] = list(entry[2])
    return found


def add_sources(found):
    """Makes tracebacks of this process show the lines that `sources` found.

    Args:
        found: Dictionary from names to lists of lines.
    """
    for name, lines in found.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
