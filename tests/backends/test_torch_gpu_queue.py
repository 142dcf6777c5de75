"""In which order PyTorch's tensors and streams wait for each other, where there is no GPU."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from easyddl.backends.torch import gpu_queue  # noqa: E402
from easyddl.backends.torch.tensor_buffer import TensorBuffer  # noqa: E402


class Stream:
    def __init__(self, log, name):
        self.log, self.name, self.cuda_stream = log, name, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"the host waits for {self.name}")


class Gpu:
    """Stands in for torch.cuda and for the engine's reducer, and logs what is asked of them."""

    def __init__(self, monkeypatch):
        self.log = []
        self.only_queues = True
        self.current = Stream(self.log, "computing")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(self.log, "beside"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.made_current)

    @contextlib.contextmanager
    def made_current(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def submit_on_gpu(self, first, pieces, weight, gpu_weight, stream, keep):
        sizes = [size for *_, size in pieces]
        self.log.append(f"{sizes} from bucket {first} on {stream}")
        assert gpu_weight == 0 and keep[-1] == weight

    @property
    def only_queues_on_gpu(self):
        return self.only_queues

    def told(self):
        told = list(self.log)
        self.log.clear()
        return told


@pytest.fixture
def gpu(monkeypatch):
    made = Gpu(monkeypatch)
    monkeypatch.setattr(Step, "engine", made)
    return made


class Step:
    """A queue, and steps of gradients of 1, 2, 3 and so on numbers."""

    engine = None  # `Gpu`

    def __init__(self, *buckets):
        self.buckets = buckets
        self.submitted = []  # in this step
        # Any device will do for one: the host's here.
        self.queue = gpu_queue.GpuQueue(self.engine, buckets, torch.device("cpu"))
        self.gradients = [torch.full([i + 1], float(i)) for i in range(sum(map(len, buckets)))]

    def leave(self, *numbers):
        for number in numbers:
            gradients = {i: self.gradients[i] for i in self.buckets[number]}
            for _ in gradients:
                self.queue.mark_ready()
            self.submitted += self.queue.submit(number, gradients, 2.0)

    def reduce(self):
        self.submitted = []
        device = self.queue.device
        results = self.queue.reduce(lambda i: TensorBuffer(self.gradients[i], True, device), 2.0)
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
    assert gpu.told() == [] and step.submitted == []
    step.leave(0)
    assert step.submitted == [0, 1, 2]
    found = [line for line in gpu.told() if "bucket" in line]
    assert found == [f"[{4 * n + 4}] from bucket {n} on beside" for n in range(3)]
    step.reduce()
    step.leave(1)
    step.reduce()
    assert gpu.told()[-1] == "[4, 8, 12] from bucket 0 on computing"


def test_gradients_from_several_streams(gpu):
    step = Step([0, 1])
    step.queue.mark_ready()
    gpu.current = Stream(gpu.log, "another")
    step.leave(0)
    assert gpu.told()[:2] == ["beside waits for computing", "beside waits for another"]


def test_nothing_leaves_ahead_where_the_backward_pass_exchanges_something_else(gpu):
    step, others = Step([0], [1]), Step([0])
    step.queue.mark_ready()
    others.reduce()
    gpu.told()
    for _ in range(2):
        step.leave(0, 1)
        assert gpu.told() == [] and step.submitted == []
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


def test_nothing_leaves_ahead_where_submitting_takes_long(gpu):
    gpu.only_queues = False
    step = Step([0], [1])
    step.leave(0, 1)
    assert gpu.told() == [] and step.submitted == []
    step.reduce()
    assert gpu.told() == ["[4, 8] from bucket 0 on computing"]


def test_something_else_that_comes_after_buckets_have_left(gpu):
    step, others = Step([0], [1]), Step([0])
    step.leave(0)
    with pytest.raises(RuntimeError, match="EASYDDL_OVERLAP=0"):
        others.reduce()


def test_a_gradient_that_must_be_copied(gpu, monkeypatch):
    step = Step([0])
    step.gradients = [torch.arange(6.0).reshape(2, 3).T]
    copied_on = []
    contiguous = torch.Tensor.contiguous
    monkeypatch.setattr(
        torch.Tensor,
        "contiguous",
        lambda tensor: copied_on.append(gpu.current.name) or contiguous(tensor),
    )
    step.leave(0)
    assert copied_on == ["beside"]
    assert gpu.told() == ["beside waits for computing", "[24] from bucket 0 on beside"]
    step.reduce()


def test_what_has_been_submitted_is_waited_for_at_the_end(gpu):
    step = Step([0], [1])
    step.queue.stop()
    assert gpu.told() == []
    step.leave(0)
    gpu.told()
    step.queue.stop()
    assert gpu.told() == ["the host waits for beside"]
    step.reduce()
    gpu.told()
    step.queue.stop()
    assert gpu.told() == ["the host waits for computing"]
    step.queue.stop()
    assert gpu.told() == []
