"""How the gradients of an optimizer are reduced, as the user wants it."""

from __future__ import annotations

import dataclasses
import os

from easyddl.reducer import bucket_size

_WIRE_VARIABLE = "EASYDDL_WIRE_DTYPE"
_WIRE_DTYPES = ("bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True)
class ReductionOptions:
    """The options of a `GradientReducer`, the same on all ranks.

    Attributes:
        bucket_bytes: Integer, or `None` to measure a suitable size.
        sparse_as_dense: Boolean. Whether sparse gradients are converted to dense gradients.
        wire_dtype: String. The dtype in which float32 gradients are sent to other hosts.
    """

    bucket_bytes: int | None = None
    sparse_as_dense: bool = False
    wire_dtype: str = "float32"


def requested(bucket_bytes, sparse_as_dense, wire_dtype):
    """Returns the `ReductionOptions` that the user chose by arguments and environment variables.

    Args:
        bucket_bytes: Argument of `DDLCallback`.
        sparse_as_dense: Argument of `DDLCallback`.
        wire_dtype: Argument of `DDLCallback`.

    Raises:
        ValueError: If one of them, or a variable, has an invalid value.
    """
    if not isinstance(sparse_as_dense, bool):
        raise ValueError(
            "`sparse_as_dense` must be True or False. "
            f"Received: sparse_as_dense={sparse_as_dense!r}"
        )
    return ReductionOptions(
        bucket_size.requested(bucket_bytes), sparse_as_dense, _requested_wire_dtype(wire_dtype)
    )


def _requested_wire_dtype(wire_dtype):
    received = wire_dtype
    if wire_dtype is None:
        received = os.environ.get(_WIRE_VARIABLE, "").strip() or "float32"
    if received not in _WIRE_DTYPES:
        name = _WIRE_VARIABLE if wire_dtype is None else "`wire_dtype`"
        raise ValueError(f"{name} must be one of {_WIRE_DTYPES}. Received: {received!r}")
    return received
