"""`OwnCallback`: the base class of easyddl's callbacks."""

import copy
import functools

from easyddl.callbacks import instances


class OwnCallback:
    """A callback for models of Keras 3, whose deep copy is a new callback.

    The copy is made with copies of the same arguments. KerasTuner copies the callbacks for each
    trial. An ordinary deep copy would share functions with which the original has replaced its
    methods, could not copy locks, and would also copy the state of the fit in which the callback is
    used, such as the model.
    """

    def __init_subclass__(cls, **arguments):
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _recording(cls.__init__))  # noqa: B010 - not for mypy to see
        setattr(cls, "set_model", _checking(cls.set_model, cls.__name__))  # noqa: B010

    def __deepcopy__(self, memo):
        args, kwargs = copy.deepcopy(self._made_with, memo)
        return type(self)(*args, **kwargs)


def _recording(init):
    """Wraps a class's `__init__` so that the instance keeps its arguments."""

    @functools.wraps(init)
    def recording(self, *args, **kwargs):
        if "_made_with" not in vars(self):  # otherwise this is the `__init__` of a base class
            self._made_with = args, kwargs
        init(self, *args, **kwargs)

    return recording


def _checking(set_model, name):
    """Wraps a class's `set_model`, which Keras calls first, so that it checks what it receives."""

    @functools.wraps(set_model)
    def checking(self, model=None):
        instances.require_instance(self, name, model)
        set_model(self, model)

    return checking
