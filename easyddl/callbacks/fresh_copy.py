"""`FreshCopy`: the base class of callbacks whose deep copies are new callbacks."""

import copy
import functools


class FreshCopy:
    """A callback whose deep copy is a new callback, made with copies of the same arguments.

    KerasTuner copies the callbacks for each trial. An ordinary deep copy would share functions with
    which the original has replaced its methods, could not copy locks, and would also copy the state
    of the fit in which the callback is used, such as the model.
    """

    def __init_subclass__(cls, **arguments):
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _recording(cls.__init__))  # noqa: B010 - not for mypy to see

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
