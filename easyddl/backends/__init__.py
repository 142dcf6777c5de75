"""The Keras backends that easyddl supports. `base.py` defines their contract, `Backend`."""

import contextlib
import functools
import importlib
import warnings

import keras

from easyddl.hosts import launched_process
from easyddl.runtime import affinity

_CLASSES = {"tensorflow": "TensorFlowBackend", "jax": "JaxBackend", "torch": "TorchBackend"}


def name():
    """Returns the name of the active Keras backend."""
    return keras.backend.backend()


def find():
    """Returns the active Keras backend as a `Backend`, or `None` if easyddl does not support it."""
    active = name()
    return _instance(active) if active in _CLASSES else None


@functools.cache
def _instance(backend):
    # Import only the active backend: each of these modules imports its framework.
    return getattr(importlib.import_module(f"easyddl.backends.{backend}"), _CLASSES[backend])()


def require():
    """Returns the active Keras backend as a `Backend`.

    Raises:
        NotImplementedError: If easyddl does not support it.
    """
    backend = find()
    if backend is None:
        raise NotImplementedError(
            f"easyddl supports these Keras backends: {', '.join(_CLASSES)}. Set "
            f"KERAS_BACKEND to one of them. Received: {name()}"
        )
    return backend


def backend_of(x):
    """Returns the active backend if `x` is one of its tensors, else `None`."""
    backend = find()
    return backend if backend is not None and backend.is_tensor(x) else None


def pin_gpu_of(world):
    """Pins this rank's GPU once MPI has started, unless a launcher's local rank already did.

    Args:
        world: `_core.World`.
    """
    if world.size > 1 and not launched_process.knows_local_rank():
        backend = require()
        try:
            backend.pin_gpu(world.local_rank)
        except RuntimeError:
            warnings.warn(
                f"{backend.framework} ran operations before easyddl started, and no launcher set "
                "this rank's number on its host, so this rank uses all GPUs of its host. Call "
                f"`easyddl.init()` before any operation of {backend.framework}.",
                stacklevel=2,
            )


def share_cores_of(world):
    """Limits this rank's threads once MPI has started and the ranks know each other's CPUs.

    Args:
        world: `_core.World`.
    """
    if world.size > 1 and launched_process.size() is not None and affinity.are_limited():
        with contextlib.suppress(RuntimeError):  # it is too late, because it has run operations
            require().share_cores(affinity.compute_threads())
