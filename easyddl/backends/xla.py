"""The custom call by which steps that XLA compiles call the engine, on JAX and TensorFlow."""

import ctypes
import functools
import pathlib

from easyddl.runtime import world

CALL = "easyddl_reduce"


@functools.cache
def library():
    """Returns the library with the custom call's handlers, connected to the engine."""
    core = world.engine().core
    loaded = ctypes.CDLL(str(pathlib.Path(core.__file__).with_name("_xla_ffi.so")))
    loaded.easyddl_connect_xla.argtypes = [ctypes.c_void_p]
    loaded.easyddl_connect_xla.restype = None
    loaded.easyddl_register_with_tensorflow.restype = ctypes.c_char_p
    loaded.easyddl_connect_xla(core.entry_points())
    return loaded


_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def module(number, types):
    """Returns the custom call as a StableHLO module, which TensorFlow can put into a graph.

    Its arguments are the weight of this rank's batch and the arrays of all buckets. Its results
    are the reduced arrays.

    Args:
        number: Integer. The number of the reducer in the engine's registry.
        types: List of pairs of the name of a dtype and a shape, one for each array.
    """
    arrays = [f"tensor<{''.join(f'{n}x' for n in shape)}{_TYPES[dtype]}>" for dtype, shape in types]
    names = [f"%a{i}" for i in range(len(arrays))]
    arguments = ", ".join(f"{name}: {array}" for name, array in zip(names, arrays, strict=True))
    listed = ", ".join(arrays)
    results = ", ".join(f"%0#{i}" for i in range(len(arrays))) if len(arrays) > 1 else "%0"
    count = f":{len(arrays)}" if len(arrays) > 1 else ""
    return f"""
module {{
  func.func @main(%weight: tensor<f32>, {arguments}) -> ({listed}) {{
    %0{count} = stablehlo.custom_call @{CALL}(%weight, {", ".join(names)}) {{
      api_version = 4 : i32,
      has_side_effect = true,
      backend_config = {{reducer = {number} : i64, first = 0 : i64}}
    }} : (tensor<f32>, {listed}) -> ({listed})
    return {results} : {listed}
  }}
}}
"""
