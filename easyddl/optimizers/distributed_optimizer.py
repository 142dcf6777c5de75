"""Averages gradients in a custom training loop."""

from __future__ import annotations

from typing import Literal, TypeVar

import keras

from easyddl.reducer import reduction_options
from easyddl.runtime import validators
from easyddl.training.agreement import replicas
from easyddl.training.step import momentum_correction, optimizer_classes, optimizer_hook

_Optimizer = TypeVar("_Optimizer", bound=keras.optimizers.Optimizer)


def DistributedOptimizer(
    optimizer: _Optimizer,
    bucket_bytes: int | None = None,
    sparse_as_dense: bool = False,
    wire_dtype: Literal["bfloat16", "float16", "float32"] | None = None,
) -> _Optimizer:
    """Makes an optimizer average gradients over all ranks before it applies them.

    Use it in custom training loops and with several optimizers. `DDLCallback` does the same during
    `model.fit()`. Every rank must call `apply` the same number of times, and begin with the same
    variables: at the first update, rank 0 prints a warning that names those that differ.

    Args:
        optimizer: A Keras optimizer instance. It is changed in place.
        bucket_bytes: Integer. The size of a gradient bucket in bytes: see `DDLCallback`.
        sparse_as_dense: Boolean. Whether sparse gradients are reduced as dense ones: see
            `DDLCallback`. Defaults to `False`.
        wire_dtype: String. The dtype in which gradients are sent to other hosts: see `DDLCallback`.

    Returns:
        The same instance.

    Raises:
        TypeError: If `optimizer` is not an instance of a Keras 3 optimizer.
        ValueError: If `bucket_bytes`, `sparse_as_dense` or `wire_dtype` has an invalid value.

    Example:
    ```python
    optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(ddl.scale_lr(1e-3)))
    optimizer.build(model.trainable_variables)
    ddl.broadcast_variables(model.weights + optimizer.variables)
    ```
    """
    validators.instance_of_keras_3(
        "optimizer", optimizer, keras.optimizers.Optimizer, "keras.optimizers.Adam(1e-3)"
    )
    optimizer_hook.keep_hook(
        optimizer,
        reduction_options.requested(bucket_bytes, sparse_as_dense, wire_dtype),
        replicas.compare_first_update,
    )
    optimizer_classes.watch()
    momentum_correction.hook(optimizer, lasts=True)
    return optimizer
