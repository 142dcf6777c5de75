"""The types of arguments that several collectives share."""

from typing import Literal, TypeVar

# A NumPy array, a number, or a tensor of the active Keras backend. A collective returns an object
# of the type of its argument.
ArrayT = TypeVar("ArrayT")

# Any object that can be pickled.
ObjectT = TypeVar("ObjectT")

Op = Literal["mean", "sum", "min", "max", "prod"]
