"""The private names of Keras that easyddl uses, and whether the installed Keras has them."""

import dataclasses
import functools
import importlib

import keras

_BACKENDS = ("tensorflow", "jax", "torch")  # on which easyddl trains


@dataclasses.dataclass(frozen=True)
class Name:
    """One private or undocumented name of Keras.

    Attributes:
        owner: String. The class or module that has it, with its path.
        name: String.
        consequence: String. What fails without it.
        since: Tuple of integers. The first version of Keras that has it; easyddl serves Keras 3.5
            and later.
        is_set: Boolean. Whether it is an attribute that the owner's methods set on instances;
            else it is a method, or a function of a module.
        backend: String. The only Keras backend that it is needed on, or `None`.
        takes: Tuple of strings. The parameters that easyddl relies on, of a function that it
            replaces.
    """

    owner: str
    name: str
    consequence: str
    since: tuple = (3, 5)
    is_set: bool = False
    backend: str | None = None
    takes: tuple = ()

    def __str__(self):
        takes = f"({', '.join(self.takes)})" if self.takes else ""
        return f"{self.owner}.{self.name}{takes}"

    def is_expected(self):
        """Whether the installed Keras should have it, by its version and backend."""
        backend = keras.backend.backend()
        is_needed = backend in _BACKENDS and self.backend in (None, backend)
        return is_needed and self.since <= version()

    def is_there(self):
        """Whether the installed Keras has it."""
        if self.is_set:
            owner = self.find_owner()
            return owner is not None and self.name in _names_in(owner)
        found = self._find()
        return found is not None and set(self.takes) <= _parameters(found)

    def find_owner(self):
        """The class or module that has it; `None` if the installed Keras lacks that too."""
        module, _, rest = self.owner.partition(".")
        found = importlib.import_module(module)
        for part in rest.split("."):
            inner = getattr(found, part, None)
            found = inner if inner is not None else _submodule(found, part)
        return found

    def _find(self):
        return getattr(self.find_owner(), self.name, None)

    def get(self):
        """The method or function itself.

        Raises:
            RuntimeError: If the installed Keras lacks it.
        """
        found = self._find()
        if found is None:
            raise RuntimeError(message([self]))
        return found

    def require(self):
        """Raises an error if the installed Keras lacks what it would be wrong to go on without."""
        if absent([self]):
            raise RuntimeError(message([self]))


def version():
    """The first two numbers of Keras's version."""
    return tuple(int(part) for part in keras.__version__.split(".")[:2])


def absent(names):
    """Those of some names that the installed Keras should have and has not.

    Args:
        names: Iterable of `Name`.

    Returns:
        List of `Name`.
    """
    _names_in.cache_clear()
    return [name for name in names if name.is_expected() and not name.is_there()]


def message(names):
    """What to tell the user of names that are missing."""
    lines = [f"  {name}: {name.consequence}" for name in names]
    return "\n".join(
        [
            f"Keras {keras.__version__} lacks {len(names)} of the private names that this version "
            "of easyddl uses. Without them:",
            *lines,
            "Install the latest easyddl, or an earlier Keras.",
        ]
    )


def _submodule(module, name):
    try:
        return importlib.import_module(f"{module.__name__}.{name}")
    except (AttributeError, ImportError):
        return None


@functools.cache
def _names_in(cls):
    """The names that occur in a class's methods: an attribute that they set is among them.

    Attributes of instances cannot be looked up otherwise without making an instance, and with it
    variables, which would have the framework begin.
    """
    found = set()
    for each in cls.__mro__:
        for member in vars(each).values():
            code = getattr(_unwrapped(member), "__code__", None)
            if code is not None:
                found.update(code.co_names)
    return found


def _parameters(function):
    code = getattr(_unwrapped(function), "__code__", None)
    if code is None:
        return set()
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _unwrapped(function):
    function = getattr(function, "fget", None) or function  # of a property
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
