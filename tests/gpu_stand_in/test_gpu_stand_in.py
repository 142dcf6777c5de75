"""The stand-ins for NCCL and the CUDA driver are right, and reject what the real ones do."""

import concurrent.futures
import ctypes
import os
import sys
import threading
import time

import gpu_stand_in
import mpi
import numpy as np
import pytest

SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 0, 2, 4, 5
SUM, PROD, MAX, MIN = range(4)
RANKS = 3


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


@pytest.fixture(scope="module")
def cuda():
    library = ctypes.CDLL(str(gpu_stand_in.folder() / "libcuda.so.1"))
    assert library.cuInit(0) == 0
    return library


@pytest.fixture(scope="module")
def nccl(cuda):
    # TensorFlow, where another test has imported it, shows functions of the driver's names to all.
    library = ctypes.CDLL(str(gpu_stand_in.folder() / "libnccl.so.2"), mode=os.RTLD_DEEPBIND)
    library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    library.ncclGetLastError.restype = ctypes.c_char_p
    return library


class Rank:
    """A rank, on a thread of this process."""

    def __init__(self, cuda, nccl, number, comm_id):
        self.cuda, self.nccl, self.number = cuda, nccl, number
        context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        self.stream, self.comm = ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(self.stream), 1) == 0
        code = nccl.ncclCommInitRank(ctypes.byref(self.comm), RANKS, comm_id, number)
        assert code == SUCCESS, self.error

    @property
    def error(self):
        return self.nccl.ncclGetLastError(self.comm).decode()

    def array(self, values):
        address = ctypes.c_size_t()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(values.nbytes)) == 0
        source = ctypes.c_void_p(values.ctypes.data)
        assert self.cuda.cuMemcpyHtoD_v2(address, source, ctypes.c_size_t(values.nbytes)) == 0
        return address

    def read(self, address, like):
        result = np.empty_like(like)
        target = ctypes.c_void_p(result.ctypes.data)
        assert self.cuda.cuStreamSynchronize(self.stream) == 0
        assert self.cuda.cuMemcpyDtoH_v2(target, address, ctypes.c_size_t(result.nbytes)) == 0
        return result

    def allreduce(self, address, count, dtype=7, op=SUM):
        return self.nccl.ncclAllReduce(
            address, address, ctypes.c_size_t(count), dtype, op, self.comm, self.stream
        )

    def async_error(self):
        """The one that comes up within some seconds."""
        code = ctypes.c_int()
        for _ in range(2000):
            assert self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(code)) == SUCCESS
            if code.value != SUCCESS:
                return code.value
            time.sleep(0.005)
        return SUCCESS


@pytest.fixture
def on_ranks(cuda, nccl):
    """Runs a function of a rank on all of them, each on a thread; the list of results."""

    def on_ranks(function):
        comm_id = Id()
        assert nccl.ncclGetUniqueId(ctypes.byref(comm_id)) == SUCCESS
        barrier = threading.Barrier(RANKS)

        def run(number):
            rank = Rank(cuda, nccl, number, comm_id)
            try:
                result = function(rank)
                barrier.wait(30)
                return result
            finally:
                nccl.ncclCommAbort(rank.comm)

        with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(run, range(RANKS)))

    return on_ranks


@pytest.mark.parametrize("what", ["count", "dtype", "op", "root"])
def test_ranks_that_differ(on_ranks, what):
    def call(rank):
        other = rank.number == 1
        array = rank.array(np.ones(8, np.float32))
        if what == "root":
            root = int(other)
            arguments = (array, array, ctypes.c_size_t(8), 7, root, rank.comm, rank.stream)
            assert rank.nccl.ncclBroadcast(*arguments) == SUCCESS
        else:
            odd = {"count": {"count": 4}, "dtype": {"dtype": 2}, "op": {"op": MAX}}[what]
            given = {"count": 8, **(odd if other else {})}
            assert rank.allreduce(array, **given) == SUCCESS
        return rank.async_error(), rank.error

    for code, text in on_ranks(call):
        assert code == INVALID_USAGE
        assert "rank 0 calls nccl" in text
        assert "rank 1 calls nccl" in text


def test_what_is_wrong_on_one_rank(on_ranks):
    def call(rank):
        array = rank.array(np.ones(8, np.float32))
        found = []

        def note(code):
            found.append((code, rank.nccl.ncclGetLastError(None).decode()))

        note(rank.allreduce(array, 8, dtype=77))
        note(rank.allreduce(array, 8, op=55))
        note(rank.allreduce(array, 9))  # it is shorter
        host = np.ones(8, np.float32)
        note(rank.allreduce(ctypes.c_size_t(host.ctypes.data), 8))
        root = (array, array, ctypes.c_size_t(8), 7, RANKS, rank.comm, rank.stream)
        note(rank.nccl.ncclBroadcast(*root))
        note(rank.nccl.ncclGroupEnd())
        return found

    for found in on_ranks(call):
        texts = ["wrong type 77", "wrong operator", *["does not lie in a GPU's memory"] * 2]
        texts += [f"invalid root {RANKS}", "there is no group"]
        for (code, text), want in zip(found, texts, strict=True):
            assert code in (INVALID_ARGUMENT, INVALID_USAGE)
            assert want in text


def test_use_after_the_end(on_ranks):
    def call(rank):
        array = rank.array(np.ones(8, np.float32))
        assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS
        code = rank.allreduce(array, 8)
        return code, rank.nccl.ncclGetLastError(None).decode()

    for code, text in on_ranks(call):
        assert code == INVALID_ARGUMENT
        assert "the communicator has been destroyed" in text


def test_a_group_that_is_not_ended(on_ranks):
    def call(rank):
        array = rank.array(np.ones(8, np.float32))
        assert rank.nccl.ncclGroupStart() == SUCCESS
        assert rank.allreduce(array, 8) == SUCCESS
        state = ctypes.c_int()
        code = rank.nccl.ncclCommGetAsyncError(rank.comm, ctypes.byref(state))
        text = rank.nccl.ncclGetLastError(None).decode()
        unchanged = rank.read(array, np.ones(8, np.float32)).tolist()
        assert rank.nccl.ncclGroupEnd() == SUCCESS
        return code, text, unchanged, rank.read(array, np.ones(8, np.float32)).tolist()

    for code, text, before, after in on_ranks(call):
        assert code == INVALID_USAGE
        assert text == "ncclGroupEnd is missing"
        assert before == [1] * 8
        assert after == [RANKS] * 8


def test_streams_wait_only_if_they_are_told_to(on_ranks, cuda):
    def copy_across(rank, waits):
        other, event = ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(other), 1) == 0
        assert cuda.cuEventCreate(ctypes.byref(event), 2) == 0
        # Not recorded yet: nothing is waited for.
        assert cuda.cuStreamWaitEvent(other, event, 0) == 0
        made, copied = rank.array(np.zeros(4, np.float32)), rank.array(np.ones(4, np.float32))
        n = ctypes.c_size_t(16)
        assert cuda.standInSleep(rank.stream, 50_000) == 0
        assert cuda.cuMemsetD8Async(made, 64, n, rank.stream) == 0
        assert cuda.cuEventRecord(event, rank.stream) == 0
        if waits:
            assert cuda.cuStreamWaitEvent(other, event, 0) == 0
        assert cuda.cuMemcpyDtoDAsync_v2(copied, made, n, other) == 0
        assert cuda.cuStreamSynchronize(other) == 0
        return rank.read(copied, np.zeros(4, np.float32)).view(np.uint8).tolist()

    assert on_ranks(lambda rank: copy_across(rank, False)) == [[0] * 16] * RANKS
    assert on_ranks(lambda rank: copy_across(rank, True)) == [[64] * 16] * RANKS


def test_handles_and_memory_are_checked(on_ranks, cuda):
    def call(rank):
        event, n = ctypes.c_void_p(), ctypes.c_size_t(16)
        assert cuda.cuEventCreate(ctypes.byref(event), 2) == 0
        assert cuda.cuEventDestroy_v2(event) == 0
        host = np.zeros(4, np.float32)
        address = rank.array(host)
        return [
            cuda.cuEventRecord(event, rank.stream),
            cuda.cuMemcpyDtoDAsync_v2(ctypes.c_size_t(host.ctypes.data), address, n, rank.stream),
            cuda.cuMemcpyDtoDAsync_v2(address, address, ctypes.c_size_t(17), rank.stream),
            cuda.cuMemFree_v2(ctypes.c_size_t(address.value + 4)),
        ]

    assert on_ranks(call) == [[400, 1, 1, 1]] * RANKS


def test_the_folder_of_nccl_is_none_of_the_drivers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, pathlib\n"
        "import engine_only\n"
        "from easyddl.runtime import world\n"
        "core = world.engine().core\n"
        "try:\n"
        "    ctypes.CDLL('libcuda.so.1')\n"
        "except OSError:\n"
        "    try:\n"
        "        core.gpu_versions()\n"
        "    except core.Error as error:\n"
        "        assert 'the CUDA driver (libcuda.so.1) cannot be opened' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError('a driver was found')\n"
    )
    env = mpi.environment({"EASYDDL_NCCL_PATH": str(gpu_stand_in.folder())})
    env.pop("EASYDDL_CUDA_PATH", None)
    done = mpi.run_command([sys.executable, script], env, timeout=60)
    assert done.returncode == 0, done.stdout


class Device:
    """A GPU of its own, with nothing queued by other tests."""

    def __init__(self, cuda, number):
        self.cuda = cuda
        self.context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), number) == 0
        assert cuda.cuCtxSetCurrent(self.context) == 0

    def stream(self, flags=1):
        made = ctypes.c_void_p()
        assert self.cuda.cuStreamCreate(ctypes.byref(made), flags) == 0
        return made

    def event(self):
        made = ctypes.c_void_p()
        assert self.cuda.cuEventCreate(ctypes.byref(made), 2) == 0
        return made

    def array(self, count=4):
        address = ctypes.c_size_t()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(count)) == 0
        return address

    def ends(self, stream, seconds=10.0):
        limit = time.monotonic() + seconds
        while self.cuda.cuStreamQuery(stream) != 0:
            if time.monotonic() > limit:
                return False
            time.sleep(0.005)
        return True


def test_events_need_no_more_than_one_hardware_queue(cuda, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    device = Device(cuda, 3)
    streams = [device.stream() for _ in range(3)]
    for _ in range(20):
        for first, then in zip(streams, [*streams[1:], None], strict=True):
            event = device.event()
            assert cuda.standInSleep(first, 1000) == 0
            assert cuda.cuEventRecord(event, first) == 0
            assert cuda.cuStreamWaitEvent(then, event, 0) == 0
    assert all(device.ends(stream) for stream in (*streams, None))


@pytest.mark.full  # the streams may wait on a busy machine, and then end in another order
def test_blocking_streams_and_the_null_stream_go_one_after_the_other(cuda):
    device = Device(cuda, 2)
    array, n = device.array(), ctypes.c_size_t(4)
    blocking, other = device.stream(0), device.stream(1)

    def set_late(stream, value):
        assert cuda.standInSleep(stream, 50_000) == 0
        assert cuda.cuMemsetD8Async(array, value, n, stream) == 0

    def read(stream):
        made = ctypes.c_void_p()
        assert cuda.cuMemHostAlloc(ctypes.byref(made), n, 0) == 0
        assert cuda.cuMemcpyDtoHAsync_v2(made, array, n, stream) == 0
        assert cuda.cuStreamSynchronize(stream) == 0
        return ctypes.string_at(made.value, 1)[0]

    set_late(blocking, 1)
    assert read(None) == 1
    set_late(None, 2)
    assert read(blocking) == 2
    set_late(None, 3)
    assert read(other) == 2


@pytest.mark.parametrize(("mode", "survives"), [(0, False), (2, True)])
def test_what_another_thread_asks_of_the_driver_during_a_capture(cuda, mode, survives):
    device = Device(cuda, 2)
    stream, event, status = device.stream(), device.event(), ctypes.c_int(-1)
    assert cuda.cuStreamIsCapturing(stream, ctypes.byref(status)) == 0
    assert status.value == 0
    assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
    assert cuda.cuStreamIsCapturing(stream, ctypes.byref(status)) == 0
    assert status.value == 1

    def ask():
        swapped = ctypes.c_int(mode)
        assert cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(swapped)) == 0
        assert swapped.value == 0
        return cuda.cuEventQuery(event)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(ask).result() == (0 if survives else 900)
    graph = ctypes.c_void_p()
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == (0 if survives else 901)
