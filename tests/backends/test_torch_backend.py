import os
import subprocess
import sys
import types

import keras
import mpi
import numpy as np
import pytest

from easyddl import backends
from easyddl.hosts import launchers

torch = pytest.importorskip("torch")

from easyddl.backends.torch import TorchBackend, overlap  # noqa: E402


def variables(kind):
    """The variables by which launchers tell one thing."""
    return [getattr(row, kind) for row in launchers.LAUNCHERS if getattr(row, kind)]


BACKEND = TorchBackend()


def python(*lines, **environment):
    """Runs lines in a Python of their own, with Keras on PyTorch."""
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env=mpi.environment({"KERAS_BACKEND": "torch", **environment}),
        capture_output=True,
        text=True,
    )


@pytest.fixture
def gpus(monkeypatch):
    """Stands in for torch.cuda on a host with three GPUs, and notes what is asked of it."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.delenv("KERAS_TORCH_DEVICE", raising=False)
    return asked


@pytest.mark.parametrize(("local_rank", "mine"), [(0, 0), (2, 2), (4, 1)])
def test_a_gpu_is_pinned_by_local_rank(monkeypatch, gpus, local_rank, mine):
    monkeypatch.setenv("PMI_SIZE", "5")
    monkeypatch.setenv("MPI_LOCALRANKID", str(local_rank))
    BACKEND.configure()
    assert gpus == [mine]


def test_without_a_launcher_gpus_are_left_alone(monkeypatch, gpus):
    for name in variables("size"):
        monkeypatch.delenv(name, raising=False)
    BACKEND.configure()
    assert gpus == []


def test_a_gpu_that_only_mpi_can_tell(monkeypatch, gpus):
    monkeypatch.setattr(backends, "require", lambda: BACKEND)
    for name in variables("local_rank"):
        monkeypatch.delenv(name, raising=False)
    for size in ("", "5"):
        monkeypatch.setenv("PMI_SIZE", size)
        BACKEND.configure()
        assert gpus == []
    backends.pin_gpu_of(types.SimpleNamespace(size=1, local_rank=0))
    assert gpus == []
    backends.pin_gpu_of(types.SimpleNamespace(size=5, local_rank=4))
    assert gpus == [1]
    monkeypatch.setenv("MPI_LOCALRANKID", "2")
    backends.pin_gpu_of(types.SimpleNamespace(size=5, local_rank=4))
    assert gpus == [1]  # that was done at import


def test_a_device_that_the_user_set_stays(monkeypatch, gpus):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    BACKEND.configure()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setenv("KERAS_TORCH_DEVICE", "cpu")
    BACKEND.configure()
    assert gpus == []


@pytest.fixture
def threads(monkeypatch):
    """Stands in for PyTorch's threads on eight cores of four ranks; the mutable `now` is set."""
    state = types.SimpleNamespace(now=8)
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: state.now)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: setattr(state, "now", count))
    return state


@pytest.mark.parametrize(("before", "after"), [(8, 2), (4, 2), (3, 3), (1, 1)])
def test_cores_are_shared_unless_the_user_has_set_threads(threads, before, after):
    threads.now = before
    TorchBackend().share_cores(2)
    assert threads.now == after


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_environment_says_of_threads_stays(monkeypatch, threads, name):
    monkeypatch.setenv(name, "8")
    TorchBackend().share_cores(2)
    assert threads.now == 8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64", "uint8", "bool"])
def test_there_and_back(dtype):
    tensor = torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, dtype)).T
    array = BACKEND.to_numpy(tensor)
    assert array.dtype.name == dtype and array.shape == (2, 2)
    assert torch.equal(BACKEND.from_numpy(np.ascontiguousarray(array), tensor), tensor)
    scalar = BACKEND.from_numpy(BACKEND.to_numpy(tensor[0, 0]), tensor)
    assert scalar.shape == () and scalar.dtype == tensor.dtype


def test_random_numbers_of_another_rank():
    torch.manual_seed(3)
    state = BACKEND.random_state()
    draws = []
    for distance in (0, 1, 2, 1, 0):
        BACKEND.set_random_state(BACKEND.random_state_of_another_rank(state, distance))
        draws.append(torch.rand(4).tolist())
    assert draws[0] == draws[4] and draws[1] == draws[3]
    assert len({tuple(draw) for draw in draws}) == 3
    torch.manual_seed(3)
    assert torch.rand(4).tolist() == draws[0]


class Sent:
    """What an `Overlap` over some parameters submits early, which takes this for its queue."""

    device = torch.device("cpu")

    def __init__(self, *sizes, buckets=None, flags=None):
        self.parameters = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
        self.buckets = []
        self.weight = 2.0
        plan = buckets or [[i] for i in range(len(sizes))]
        self.overlap = overlap.Overlap.of(plan, self.parameters, self, lambda: self.weight, flags)
        self.flags = []

    def mark_ready(self):
        pass

    def submit(self, number, gradients, weight):
        self.flags = [gradients.pop(i) for i in list(gradients) if i >= len(self.parameters)]
        assert all(each is self.parameters[i].grad for i, each in gradients.items())
        self.buckets.append((number, weight))
        return [number]

    def step(self, *used):
        """A step by whose loss some parameters get gradients; the buckets that left in it."""
        self.buckets.clear()
        for parameter in self.parameters:
            parameter.grad = None
        sum(self.parameters[i].sum() for i in used).backward()
        left = sorted(self.buckets)
        self.overlap.end_step(
            [torch.zeros(1) if p.grad is None else p.grad for p in self.parameters], self.weight
        )
        return left


@pytest.mark.full
def test_what_one_step_has_shown_is_done_in_the_next():
    sent = Sent(2, 3)
    assert sent.step(0, 1) == []
    assert sent.step(0, 1) == [(0, 2.0), (1, 2.0)]
    assert sent.step(0) == [(0, 2.0)]
    assert sent.step(0, 1) == [(0, 2.0), (1, 2.0)]


def test_a_bucket_leaves_when_all_of_it_is_there():
    sent = Sent(1, 1, 1, buckets=[[2, 0], [1]])
    sent.step(0, 1, 2)
    assert sent.step(0, 1) == [(1, 2.0)]
    assert sent.step(0, 1, 2) == [(0, 2.0), (1, 2.0)]


def test_flags_leave_last_once_all_gradients_are_there():
    ones = torch.ones(3)
    sent = Sent(1, 1, 1, buckets=[[0], [1], [2, 3]], flags=lambda like: ones)
    sent.step(0, 1, 2)
    assert sent.step(2, 0) == [(0, 2.0)]
    assert sent.step(2, 1, 0) == [(0, 2.0), (1, 2.0), (2, 2.0)]
    assert sent.buckets[-1][0] == 2 and sent.flags[0] is not ones  # which the result overwrites
    unknown = Sent(1, 1, buckets=[[0], [1, 2]])
    unknown.step(0, 1)
    assert unknown.step(0, 1) == [(0, 2.0)]


def test_two_passes_in_a_step_send_nothing_ahead():
    sent = Sent(2)
    for _ in range(3):
        sent.buckets.clear()
        for _ in range(2):
            sent.parameters[0].sum().backward()
        sent.overlap.end_step([sent.parameters[0].grad], 2.0)
        assert sent.buckets == []
    assert sent.step(0) == []  # it watches again
    assert sent.step(0) == [(0, 2.0)]


def test_a_weight_that_changes_within_a_step():
    sent = Sent(2)
    sent.step(0)
    sent.parameters[0].grad = None
    sent.parameters[0].sum().backward()
    with pytest.raises(RuntimeError, match=r"weight 2.0 when .* and 3.0 when"):
        sent.overlap.end_step([sent.parameters[0].grad], 3.0)


def test_a_stopped_one_leaves_no_hooks():
    sent = Sent(2)
    sent.step(0)
    sent.overlap.stop()
    assert sent.step(0) == [] and sent.step(0) == []
    assert not sent.parameters[0]._post_accumulate_grad_hooks
    assert id(sent.parameters[0]) not in overlap._watching


def test_a_model_that_reduces_by_itself(monkeypatch):
    class Reducer(torch.nn.Linear):
        pass

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Reducer)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    monkeypatch.setattr(keras.Layer, "named_modules", lambda self: [], raising=False)
    BACKEND.check_model(model)
    object.__setattr__(model, "mine", Reducer(2, 1))
    with pytest.raises(ValueError, match="Reducer averages gradients over processes"):
        BACKEND.check_model(model)


@pytest.mark.full
def test_importing_it_imports_no_other_framework():
    count = "print(sorted({'tensorflow', 'jax', 'torch'} & set(sys.modules)))"
    keras_alone = python("import sys, keras", count)
    done = python("import sys, easyddl.backends", "easyddl.backends.require()", count)
    assert "torch" in done.stdout and "tensorflow" not in done.stdout, done
    assert done.stdout == keras_alone.stdout, (done, keras_alone)


def test_threads_are_set_again_when_the_ranks_know_each_other(threads):
    backend = TorchBackend()
    backend.share_cores(1)
    assert threads.now == 1
    backend.share_cores(4)
    assert threads.now == 4
    threads.now = 3  # the user's
    backend.share_cores(2)
    assert threads.now == 3
