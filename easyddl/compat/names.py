"""The private names of Keras that easyddl uses, and whether the installed Keras has them."""

import dataclasses
import functools
import importlib
import inspect
import re

import keras

_BACKENDS = ("tensorflow", "jax", "torch")  # the backends that easyddl supports


@dataclasses.dataclass(frozen=True)
class Name:
    """One private or undocumented name of Keras.

    Attributes:
        owner: String. The full name of the class or module that has the name.
        signature: String. The name, and of a function that easyddl replaces the parameters that
            easyddl relies on: `"name"` or `"name(parameter, parameter)"`.
        consequence: String. What fails without the name.
        since: Tuple of integers. The first version of Keras that has the name. easyddl supports
            Keras 3.5 and later.
        is_set: Boolean. Whether this is an attribute that the owner's methods set on instances.
            Otherwise it is a method, or a function of a module.
        backend: String. The only Keras backend that needs the name, or `None`.
    """

    owner: str
    signature: str
    consequence: str
    since: tuple = (3, 5)
    is_set: bool = False
    backend: str | None = None

    def __str__(self):
        return f"{self.owner}.{self.signature}"

    @property
    def name(self):
        """String. The name itself."""
        return self.signature.partition("(")[0]

    def is_expected(self):
        """Returns whether the installed Keras should have the name, by its version and backend."""
        backend = keras.backend.backend()
        is_needed = backend in _BACKENDS and self.backend in (None, backend)
        return is_needed and self.since <= version()

    def is_there(self):
        """Returns whether the installed Keras has the name."""
        if self.is_set:
            owner = self.find_owner()
            return owner is not None and self.name in _names_in(owner)
        found = self._find()
        takes = re.findall(r"\w+", self.signature.partition("(")[2])
        # Do not inspect a module that Keras imports lazily: that would import it.
        return found is not None and (not takes or _parameters(found).issuperset(takes))

    def find_owner(self):
        """Returns the class or module `owner`; `None` if the installed Keras lacks it."""
        module, _, rest = self.owner.partition(".")
        found = importlib.import_module(module)
        for part in rest.split("."):
            inner = getattr(found, part, None)
            found = inner if inner is not None else _submodule(found, part)
        return found

    def _find(self):
        return getattr(self.find_owner(), self.name, None)

    def get(self):
        """Returns the method or function itself.

        Raises:
            RuntimeError: If the installed Keras lacks it.
        """
        found = self._find()
        if found is None:
            raise RuntimeError(message([self]))
        return found

    def require(self):
        """Raises a `RuntimeError` if the installed Keras should have the name but lacks it."""
        if absent([self]):
            raise RuntimeError(message([self]))


def several(owner, consequences, **options):
    """Returns the `Name`s that one class or module has.

    Args:
        owner: String: see `Name`.
        consequences: Dict of strings. The `consequence` by the `signature`.
        **options: Further attributes of each `Name`.

    Returns:
        List of `Name`.
    """
    return [Name(owner, signature, text, **options) for signature, text in consequences.items()]


def version():
    """Returns the first two numbers of Keras's version."""
    return tuple(int(part) for part in keras.__version__.split(".")[:2])


def absent(names):
    """Returns the names that the installed Keras should have but lacks.

    Args:
        names: Iterable of `Name`.

    Returns:
        List of `Name`.
    """
    _names_in.cache_clear()
    return [name for name in names if name.is_expected() and not name.is_there()]


def message(names):
    """Returns a message for the user about missing names."""
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
    """Returns all names that occur in a class's methods, among them attributes that they set.

    The alternative is to create an instance and look at its attributes. That would create
    variables, and thereby initialize the framework.
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
    return inspect.unwrap(getattr(function, "fget", None) or function)  # the getter of a property
