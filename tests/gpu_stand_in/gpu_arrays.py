"""What a framework does on a GPU: arrays, streams, and work on these, by the CUDA driver.

That is the one which the engine opens: EASYDDL_CUDA_PATH's, such as the stand-in, or the host's.
"""

import contextlib
import ctypes
import os
import pathlib
import time

import numpy as np

_FOLDER = os.environ.get("EASYDDL_CUDA_PATH", "")
_cuda = ctypes.CDLL(str(pathlib.Path(_FOLDER, "libcuda.so.1")) if _FOLDER else "libcuda.so.1")
_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Its argument is how long, in microseconds.
_SLEEP = _Function(lambda microseconds: time.sleep((microseconds or 0) * 1e-6))


def call(name, *arguments):
    code = getattr(_cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def take_gpu(number):
    """Makes a GPU this thread's."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    call("cuCtxSetCurrent", context)


def copied_to_host():
    """How many bytes streams have copied there. Only the stand-in counts them."""
    count = _cuda.standInToHost
    count.restype = ctypes.c_uint64
    return count()


def counted(what):
    """How many `"Streams"` or `"Events"` there are. Only the stand-in knows."""
    count = getattr(_cuda, f"standIn{what}")
    count.restype = ctypes.c_size_t
    return count()


class Stream:
    """One that does not wait for the NULL stream, as those of PyTorch and XLA, unless it blocks."""

    def __init__(self, blocks=False):
        self.handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(self.handle), 0 if blocks else 1)

    @property
    def number(self):
        return self.handle.value or 0

    @contextlib.contextmanager
    def capture(self):
        """As PyTorch does it: in a mode in which other threads can break the capture."""
        graph = ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", self.handle, 0)
        yield
        call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
        if graph:
            call("cuGraphDestroy", graph)

    def sleep(self, microseconds):
        call("cuLaunchHostFunc", self.handle, _SLEEP, ctypes.c_void_p(microseconds))

    def wait_for(self, other):
        """Has this stream wait for what another one has to do now."""
        event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(event), 0)
        call("cuEventRecord", event, other.handle)
        call("cuStreamWaitEvent", self.handle, event, 0)
        call("cuEventDestroy_v2", event)

    def synchronize(self):
        call("cuStreamSynchronize", self.handle)


class NullStream(Stream):
    """That of every context, on which PyTorch computes."""

    def __init__(self):
        self.handle = ctypes.c_void_p()


class Array:
    """An array of a GPU. Only copies reach it."""

    def __init__(self, values):
        self.dtype, self.shape, self.nbytes = values.dtype, values.shape, values.nbytes
        self._address = ctypes.c_size_t()
        # A framework has no address for an array of no elements.
        self.address = 0
        if self.nbytes:
            call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(self.nbytes))
            self.address = self._address.value
            self.put(values)

    def put(self, values):
        """At once, whatever the streams do."""
        values = np.ascontiguousarray(values, self.dtype)
        if self.nbytes:
            pointer = ctypes.c_void_p(values.ctypes.data)
            call("cuMemcpyHtoD_v2", self._address, pointer, ctypes.c_size_t(self.nbytes))
            # The driver may still copy from memory of its own, for which other streams do not wait.
            call("cuStreamSynchronize", None)

    def get(self):
        """At once, whatever the streams do."""
        values = np.empty(self.shape, self.dtype)
        if self.nbytes:
            pointer = ctypes.c_void_p(values.ctypes.data)
            call("cuMemcpyDtoH_v2", pointer, self._address, ctypes.c_size_t(self.nbytes))
        return values

    def copy_from(self, other, stream):
        if self.nbytes:
            size = ctypes.c_size_t(self.nbytes)
            call("cuMemcpyDtoDAsync_v2", self._address, other._address, size, stream.handle)

    def scale(self, factor, stream):
        """Multiplies float32. Only the stand-in has work ready-made."""
        count, by = ctypes.c_size_t(self.nbytes // 4), ctypes.c_float(factor)
        call("standInScale", self._address, count, by, stream.handle)

    def free(self):
        if self.nbytes:
            call("cuMemFree_v2", self._address)
