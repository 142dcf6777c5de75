"""The files in tutorials/clusters: that they can be read by what reads them."""

import ast
import pathlib
import shutil
import subprocess

import pytest

from easyddl.hosts import hostfile

FOLDER = pathlib.Path(__file__).parents[2] / "tutorials" / "clusters"


def files(*suffixes):
    found = [path for path in sorted(FOLDER.iterdir()) if path.suffix in suffixes]
    assert found
    return [pytest.param(path, id=path.name) for path in found]


@pytest.mark.parametrize("path", files(".yaml", ".yml"))
def test_yaml(path):
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents and all(isinstance(each, dict) for each in documents)


def test_the_worker_of_the_mpi_job_can_be_reached():
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((FOLDER / "mpijob.yaml").read_text())["spec"]
    replicas = spec["mpiReplicaSpecs"]
    assert spec["mpiImplementation"] == "MPICH" and spec["slotsPerWorker"] == 4
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"][:5] == ["/venv/bin/easyddl", "run", "--grace", "100", "--"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 2222
    assert worker["image"] == launcher["image"]


def test_the_train_job_uses_its_runtime():
    yaml = pytest.importorskip("yaml")
    runtime, job = yaml.safe_load_all((FOLDER / "trainjob.yaml").read_text())
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    names = [each["name"] for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]]
    assert names == ["node", "launcher"]


def test_hostfile():
    read = hostfile.read(FOLDER / "hosts.txt")
    assert [(host.name, host.slots) for host in read] == [("gpu1", 4), ("gpu2", 4)]


@pytest.mark.parametrize("path", files(".sh", ".sbatch"))
def test_shell(path):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", files(".py"))
def test_python(path):
    ast.parse(path.read_text())
