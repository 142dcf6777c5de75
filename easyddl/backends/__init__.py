"""The Keras backends that easyddl serves, all by one contract: `Backend` in `base.py`."""

import importlib

import keras

from easyddl.runtime import launcher

_CLASSES = {"tensorflow": "TensorFlowBackend", "jax": "JaxBackend", "torch": "TorchBackend"}

_instances = {}  # by the backend's name


def name():
    """The active Keras backend's name."""
    return keras.backend.backend()


def find():
    """The active Keras backend as a `Backend`, or `None` if easyddl does not serve it."""
    active = name()
    if active not in _instances and active in _CLASSES:
        # Imported here: each of these imports its framework.
        module = importlib.import_module(f"easyddl.backends.{active}")
        _instances[active] = getattr(module, _CLASSES[active])()
    return _instances.get(active)


def require():
    """The active Keras backend as a `Backend`.

    Raises:
        NotImplementedError: If easyddl does not serve it.
    """
    backend = find()
    if backend is None:
        raise NotImplementedError(
            f"easyddl trains on these Keras backends so far: {', '.join(_CLASSES)}. Set "
            f"KERAS_BACKEND to one of them. Received: {name()}"
        )
    return backend


def backend_of(x):
    """The active backend if `x` is one of its tensors, else `None`."""
    backend = find()
    return backend if backend is not None and backend.is_tensor(x) else None


def pin_gpu_of(world):
    """Pins this rank's GPU once MPI tells its local rank, if no launcher told it at import.

    Args:
        world: `_core.World`.
    """
    if world.size > 1 and not launcher.knows_local_rank():
        require().pin_gpu(world.local_rank)
