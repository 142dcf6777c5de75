"""The engine of easyddl: hierarchical collectives over shared memory and MPI."""

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Arrays come as their bytes; what these mean is told by a dtype's name.
_Bytes: TypeAlias = NDArray[np.uint8]

# The type of pybind11's classes; it can only be had at run time.
class _Pybind11Type(type): ...
class Error(RuntimeError): ...

class Signature(metaclass=_Pybind11Type):
    def __init__(self, text: str) -> None: ...
    @property
    def text(self) -> str: ...

class World(metaclass=_Pybind11Type):
    def __init__(self, host: str) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def hosts(self) -> list[str]: ...

class Channel(metaclass=_Pybind11Type):
    def __init__(self, world: World) -> None: ...
    def allreduce(
        self,
        inputs: Sequence[_Bytes],
        outputs: Sequence[_Bytes],
        dtype: str,
        op: str,
        signature: Signature,
    ) -> None: ...
    def broadcast(
        self,
        inputs: Sequence[_Bytes],
        outputs: Sequence[_Bytes],
        root: int,
        signature: Signature,
    ) -> None: ...
    def barrier(self, signature: Signature) -> None: ...
    def gather_values(self, value: int, signature: Signature) -> list[int]: ...
    def all_gather(
        self,
        input: _Bytes,
        output: _Bytes,
        counts: Sequence[int],
        unit_bytes: int,
        rank: int,
        signature: Signature,
    ) -> None: ...
    def all_to_all(
        self,
        input: _Bytes,
        output: _Bytes,
        sends: Sequence[int],
        receives: Sequence[int],
        unit_bytes: int,
        signature: Signature,
    ) -> None: ...
    def reduce_scatter(
        self,
        input: _Bytes,
        output: _Bytes,
        count: int,
        size: int,
        dtype: str,
        op: str,
        signature: Signature,
    ) -> None: ...

def mpi_library_version() -> str: ...
def built_with() -> str: ...
def watch_exit(world: World) -> None: ...
def end_job(status: int) -> NoReturn: ...
def warn_at_end(text: str) -> None: ...
def stop_signals() -> None: ...
