import pytest
import tensorflow as tf

from easyddl.backends.tensorflow import TensorFlowBackend, devices
from easyddl.runtime import launchers


def variables(kind):
    """The variables by which launchers tell one thing."""
    return [getattr(row, kind) for row in launchers.LAUNCHERS if getattr(row, kind)]


BACKEND = TensorFlowBackend()


@pytest.fixture
def gpus(monkeypatch):
    """Stands in for tf.config on a machine with three GPUs, and notes what is asked of it."""
    asked = {}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu0", "gpu1", "gpu2"])
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda device, kind: asked.update(visible=(device, kind))
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "set_memory_growth",
        lambda device, on: asked.update(growth=(device, on)),
    )
    return asked


@pytest.mark.parametrize(("local_rank", "mine"), [(0, "gpu0"), (2, "gpu2"), (4, "gpu1")])
def test_a_gpu_is_pinned_by_local_rank(monkeypatch, gpus, local_rank, mine):
    monkeypatch.setenv("PMI_SIZE", "5")
    monkeypatch.setenv("MPI_LOCALRANKID", str(local_rank))
    BACKEND.configure()
    assert gpus == {"visible": (mine, "GPU"), "growth": (mine, True)}


def test_without_a_launcher_gpus_are_left_alone(monkeypatch, gpus):
    for name in variables("size"):
        monkeypatch.delenv(name, raising=False)
    BACKEND.configure()
    assert gpus == {}


def test_a_gpu_that_only_mpi_can_tell(monkeypatch, gpus):
    for name in variables("local_rank"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "5")
    BACKEND.configure()
    assert gpus == {}
    BACKEND.pin_gpu(4)
    assert gpus == {"visible": ("gpu1", "GPU"), "growth": ("gpu1", True)}


def test_what_the_user_set_stays(monkeypatch):
    asked = []
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 7)
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 3)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", asked.append)
    monkeypatch.setattr(tf.config.threading, "set_inter_op_parallelism_threads", asked.append)
    BACKEND.share_cores(2)
    assert asked == []


@pytest.fixture
def threads(monkeypatch):
    """TensorFlow's numbers of threads, of which none is set."""
    numbers = {"intra": 0, "inter": 0}
    monkeypatch.setattr(devices, "_own", {})
    for kind in numbers:
        monkeypatch.delenv(f"TF_NUM_{kind.upper()}OP_THREADS", raising=False)
        name = f"{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, f"get_{name}", lambda k=kind: numbers[k])
        monkeypatch.setattr(
            tf.config.threading, f"set_{name}", lambda count, k=kind: numbers.update({k: count})
        )
    return numbers


def test_each_variable_that_the_user_set_stays(monkeypatch, threads):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "3")
    BACKEND.share_cores(4)
    assert threads == {"intra": 4, "inter": 0}
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS")
    BACKEND.share_cores(5)
    assert threads == {"intra": 4, "inter": 5}


def test_importing_after_tensorflow_has_begun_warns(monkeypatch):
    def begun(device, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu0"])
    monkeypatch.setattr(tf.config, "set_visible_devices", begun)
    with pytest.warns(UserWarning, match="Import easyddl first"):
        BACKEND.configure()


def test_threads_are_set_again_when_the_ranks_know_each_other(threads):
    BACKEND.share_cores(1)
    assert threads == {"intra": 1, "inter": 2}
    BACKEND.share_cores(4)
    assert threads == {"intra": 4, "inter": 4}
    threads["intra"] = 7  # the user's
    BACKEND.share_cores(2)
    assert threads == {"intra": 7, "inter": 2}
