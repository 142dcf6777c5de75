"""XLA's way into the engine: a custom call, which JAX and TensorFlow can put into their steps."""

import ctypes
import functools
import pathlib

from easyddl import world

CALL = "easyddl_exchange"


@functools.cache
def library():
    """The library that holds the custom call's handler, connected with the engine."""
    core = world.engine().core
    loaded = ctypes.CDLL(str(pathlib.Path(core.__file__).with_name("_xla_ffi.so")))
    loaded.easyddl_connect_xla.argtypes = [ctypes.c_void_p]
    loaded.easyddl_connect_xla.restype = None
    loaded.easyddl_register_with_tensorflow.restype = ctypes.c_char_p
    loaded.easyddl_connect_xla(core.exchange_door())
    return loaded
