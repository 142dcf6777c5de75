import os

import pytest
import tensorflow as tf

from easyddl.backends.tensorflow import TensorFlowBackend, devices
from easyddl.runtime import affinity, launcher

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
    for name in launcher._SIZE:
        monkeypatch.delenv(name, raising=False)
    BACKEND.configure()
    assert gpus == {}


def test_a_gpu_that_only_mpi_can_tell(monkeypatch, gpus):
    for name in launcher._LOCAL_RANK:
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
    devices.share_cores()
    assert asked == []


def test_importing_after_tensorflow_has_begun_warns(monkeypatch):
    def begun(device, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu0"])
    monkeypatch.setattr(tf.config, "set_visible_devices", begun)
    with pytest.warns(UserWarning, match="Import easyddl first"):
        BACKEND.configure()


def test_cores_are_shared_unless_the_launcher_has_done_it(monkeypatch):
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    own, launchers = set(range(8)), set(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own if pid == 0 else launchers)
    assert affinity.compute_threads() == 2
    own = {0, 1, 2}  # bound
    assert affinity.compute_threads() == 3
