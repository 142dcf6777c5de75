"""Forked ranks: what they have of a process that mpirun has started, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time

import fork_server
import mpi
import pytest
from test_run import assert_gone, is_running

pytestmark = pytest.mark.mpirun

TELL = """
import json, os, sys
launched = os.environ
rank = int(launched.get("PMI_RANK") or launched["OMPI_COMM_WORLD_RANK"])
loaded = set(sys.modules)
import numpy, random
found = {
    "arguments": sys.argv, "directory": os.getcwd(), "variable": os.environ["EASYDDL_TEST_TOLD"],
    "cpus": sorted(os.sched_getaffinity(0)), "hash": hash("a string"), "keras": "keras" in loaded,
    "too much": sorted(loaded & {"easyddl", "easyddl._core", "mpi4py.MPI", "tensorflow", "torch"}),
    "random": [random.random(), numpy.random.random()], "path": sys.path[0], "file": __file__,
    "devices": sys.modules["jax"]._src.xla_bridge.backends_are_initialized(),
}
with open(f"{rank}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(autouse=True)
def jax():
    mpi.require("jax")


def run(script, folder, *arguments, ranks=2):
    path = folder / "script.py"
    path.write_text(script)
    env = {"KERAS_BACKEND": "jax", "EASYDDL_TEST_TOLD": "a value"}
    return mpi.run(ranks, path, *arguments, env=env, cwd=folder, forked=True, timeout=60)


def test_what_forked_ranks_have(tmp_path):
    done = run(TELL, tmp_path, "an argument", "--option", ranks=3)
    assert done.returncode == 0, done.stdout
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for one in ranks:
        assert one["arguments"] == [str(tmp_path / "script.py"), "an argument", "--option"]
        assert (one["directory"], one["path"]) == (str(tmp_path), str(tmp_path))
        assert one["file"] == str(tmp_path / "script.py")
        assert one["variable"] == "a value"
        assert one["cpus"] == sorted(os.sched_getaffinity(0))
        # A server has computed nothing, and has not imported what is tested.
        assert (one["keras"], one["too much"], one["devices"]) == (True, [], False)
    # What processes have by chance differs between neighbours.
    assert ranks[0]["hash"] == ranks[2]["hash"] != ranks[1]["hash"]
    for i in (0, 1):
        assert len({one["random"][i] for one in ranks}) == 3


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("sys.exit(5)", None),
        ("os.kill(os.getpid(), 9)", None),
        ("raise ValueError('on purpose')", "ValueError: on purpose"),
    ],
)
def test_how_a_forked_rank_ends(statement, said, tmp_path):
    script = f"import os, sys\nif os.environ.get('PMI_RANK', '1') == '1':\n    {statement}\n"
    done = run(script, tmp_path)
    assert done.returncode != 0, done.stdout
    assert said is None or said in done.stdout


def start(tmp_path, server=None):
    """A forked process that sleeps. Returns its client and its id."""
    path = tmp_path / "script.py"
    path.write_text("import os, time\nopen('pid', 'w').write(f'{os.getpid()} ')\ntime.sleep(60)\n")
    env = mpi.environment({"KERAS_BACKEND": "jax"})
    line = [sys.executable, "-I", "-S", str(fork_server.HERE / "rank.py"), server, str(path)]
    line = line if server else [*mpi.python(env, True), str(path)]
    client = subprocess.Popen(line, env=env, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith(" "))
    return client, int((tmp_path / "pid").read_text())


def wait_for(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_signal_to_a_client_ends_its_process(name, tmp_path):
    client, process = start(tmp_path)
    client.send_signal(getattr(signal, name))
    # Python exits so after a KeyboardInterrupt.
    assert client.wait(30) == -getattr(signal, name)
    assert_gone([process], 30)


def test_a_server_ends_with_its_owner_and_what_it_has_forked_too(tmp_path):
    owner = subprocess.Popen(["sleep", "60"])
    env, socket = mpi.environment({"KERAS_BACKEND": "jax"}), tmp_path / "socket"
    line = [sys.executable, str(fork_server.HERE / "server.py"), str(socket), str(owner.pid)]
    server = subprocess.Popen(line, env=env)
    wait_for(socket.exists)
    client, process = start(tmp_path, str(socket))
    assert is_running(process)
    owner.kill()
    owner.wait()
    assert server.wait(30) == 0
    assert_gone([process], 30)
    assert client.wait(30) != 0


def test_a_server_that_cannot_start_says_why(tmp_path):
    env = mpi.environment({"KERAS_BACKEND": "nothing"})
    with pytest.raises(RuntimeError, match=r"(?s)fork server did not start.*nothing"):
        fork_server.command(env)
