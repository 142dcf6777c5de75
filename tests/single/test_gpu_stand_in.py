"""The stand-ins for NCCL and the CUDA driver are right, and reject what the real ones do."""

import concurrent.futures
import ctypes
import math
import os
import threading
import time

import gpu_stand_in
import ml_dtypes
import numpy as np
import pytest

SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 0, 2, 4, 5
TYPES = {"int8": 0, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
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


def values(rank, dtype, count=1000):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    random = np.random.default_rng(rank)
    if kind.kind == "i":
        return random.integers(-5, 6, count).astype(kind)
    return random.standard_normal(count).astype(kind)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_are_rounded_once(on_ranks, dtype):
    def sum_up(rank):
        mine = values(rank.number, dtype)
        array = rank.array(mine)
        assert rank.allreduce(array, mine.size, TYPES[dtype]) == SUCCESS
        return rank.read(array, mine)

    wide = np.float32 if dtype in ("float16", "bfloat16") else dtype
    rows = [values(number, dtype).astype(wide) for number in range(RANKS)]
    want = (rows[0] + rows[1] + rows[2]).astype(values(0, dtype).dtype)
    for result in on_ranks(sum_up):
        assert result.tobytes() == want.tobytes()


@pytest.mark.parametrize(("op", "function"), [(MAX, max), (MIN, min), (PROD, math.prod)])
def test_operators(on_ranks, op, function):
    def reduce(rank):
        mine = np.array([rank.number - 1, 5 - rank.number, 7], np.float32)
        array = rank.array(mine)
        assert rank.allreduce(array, 3, op=op) == SUCCESS
        return rank.read(array, mine).tolist()

    want = [function(column) for column in ((-1, 0, 1), (5, 4, 3), (7, 7, 7))]
    assert on_ranks(reduce) == [want] * RANKS


def test_each_rank_multiplies_by_a_factor_of_its_own(on_ranks):
    def reduce(rank):
        op, factor = ctypes.c_int(), ctypes.c_float(rank.number + 1)
        made = rank.nccl.ncclRedOpCreatePreMulSum(
            ctypes.byref(op), ctypes.byref(factor), 7, 1, rank.comm
        )
        assert made == SUCCESS
        mine = np.full(5, 10 + rank.number, np.float32)
        array = rank.array(mine)
        assert rank.allreduce(array, 5, op=op.value) == SUCCESS
        assert rank.nccl.ncclRedOpDestroy(op, rank.comm) == SUCCESS
        assert rank.allreduce(array, 5, op=op.value) == INVALID_ARGUMENT
        return rank.read(array, mine).tolist()

    assert on_ranks(reduce) == [[10 + 2 * 11 + 3 * 12] * 5] * RANKS


def test_shards(on_ranks):
    def there_and_back(rank):
        n = ctypes.c_size_t(4)
        mine = np.arange(12, dtype=np.float32) * (rank.number + 1)
        array = rank.array(mine)
        shard = ctypes.c_size_t(array.value + 16 * rank.number)
        scatter = (array, shard, n, 7, SUM, rank.comm, rank.stream)
        assert rank.nccl.ncclReduceScatter(*scatter) == SUCCESS
        assert rank.nccl.ncclAllGather(shard, array, n, 7, rank.comm, rank.stream) == SUCCESS
        return rank.read(array, mine).tolist()

    assert on_ranks(there_and_back) == [(np.arange(12) * 6).tolist()] * RANKS


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
