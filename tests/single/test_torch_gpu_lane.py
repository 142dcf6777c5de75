"""In which order PyTorch's tensors and streams wait for each other, where there is no GPU."""

import types

import pytest

torch = pytest.importorskip("torch")

from easyddl.backends import torch_gpu_lane  # noqa: E402
from easyddl.backends.torch_parcel import Parcel  # noqa: E402


class Stream:
    def __init__(self, log, name):
        self.log, self.name, self.cuda_stream = log, name, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"the host waits for {self.name}")


class Gpu:
    """Stands in for torch.cuda and for the engine, and logs what is asked of them."""

    def __init__(self, monkeypatch):
        self.log = []
        self.current = Stream(self.log, "computing")
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(self.log, "beside"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: self.current)
        engine = types.SimpleNamespace(core=self)
        monkeypatch.setattr(torch_gpu_lane.world, "engine", lambda: engine)

    def submit_on_gpu(self, exchange, first, pieces, weight, gpu_weight, stream, keep):
        sizes = [size for *_, size in pieces]
        self.log.append(f"{sizes} from bucket {first} on {stream}")
        assert gpu_weight == 0 and keep[-1] == weight

    def told(self):
        told = list(self.log)
        self.log.clear()
        return told


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)


class Step:
    """A lane, and steps of gradients of 1, 2, 3 and so on numbers."""

    def __init__(self, *buckets):
        self.buckets = buckets
        self.lane = torch_gpu_lane.GpuLane(7, buckets)
        self.gradients = [torch.full([i + 1], float(i)) for i in range(sum(map(len, buckets)))]

    def leave(self, *numbers):
        for number in numbers:
            gradients = {i: self.gradients[i] for i in self.buckets[number]}
            for _ in gradients:
                self.lane.arrive()
            self.lane.depart(number, gradients, 2.0)

    def reduce(self):
        results = self.lane.reduce(lambda i: Parcel(self.gradients[i], True, True), 2.0)
        assert sorted(results) == list(range(len(self.gradients)))
        assert all(torch.equal(results[i], self.gradients[i]) for i in results)


def test_all_of_a_step_at_once_on_the_stream_that_computes(gpu):
    Step([0], [2, 1]).reduce()
    assert gpu.told() == ["[4, 12, 8] from bucket 0 on computing"]


def test_what_leaves_ahead_is_waited_for_beside(gpu):
    step = Step([0], [1], [2])
    for _ in range(2):
        step.leave(0, 1)
        leave = ["beside waits for computing", "[4] from bucket 0 on beside"]
        leave += ["beside waits for computing", "[8] from bucket 1 on beside"]
        assert gpu.told() == leave
        step.reduce()
        assert gpu.told() == ["[12] from bucket 2 on computing", "computing waits for beside"]
    step.leave(0, 1, 2)
    gpu.told()
    step.reduce()
    assert gpu.told() == ["computing waits for beside"]


def test_buckets_go_in_their_order(gpu):
    step = Step([0], [1], [2])
    step.leave(2, 1)
    assert gpu.told() == []
    step.leave(0)
    found = [line for line in gpu.told() if "bucket" in line]
    assert found == [f"[{4 * n + 4}] from bucket {n} on beside" for n in range(3)]
    step.reduce()
    step.leave(1)
    step.reduce()
    assert gpu.told()[-1] == "[4, 8, 12] from bucket 0 on computing"


def test_gradients_from_several_streams(gpu):
    step = Step([0, 1])
    step.lane.arrive()
    gpu.current = Stream(gpu.log, "another")
    step.leave(0)
    assert gpu.told()[:2] == ["beside waits for computing", "beside waits for another"]


def test_nothing_leaves_ahead_where_the_backward_pass_exchanges_something_else(gpu):
    step, others = Step([0], [1]), Step([0])
    step.lane.arrive()
    others.reduce()
    gpu.told()
    for _ in range(2):
        step.leave(0, 1)
        assert gpu.told() == []
        others.reduce()
        step.reduce()
        assert gpu.told()[-1] == "[4, 8] from bucket 0 on computing"
    # What comes after a step's own exchange is not in its backward pass.
    others.leave(0)
    others.reduce()
    step.reduce()
    gpu.told()
    others.leave(0)
    assert gpu.told()[-1] == "[4] from bucket 0 on beside"


def test_what_has_gone_is_waited_for_at_the_end(gpu):
    step = Step([0], [1])
    step.lane.stop()
    assert gpu.told() == []
    step.leave(0)
    gpu.told()
    step.lane.stop()
    assert gpu.told() == ["the host waits for beside"]
