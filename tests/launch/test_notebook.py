"""Ranks of a real Jupyter kernel."""

import os
import pathlib
import re
import time

import mpi
import pytest
from jupyter_client import KernelManager

pytestmark = pytest.mark.mpirun

LIMIT = 90  # seconds of a cell that would otherwise hang

# The kernel of this environment, whatever the user has installed.
OWN_KERNEL = {"JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_NO_CONFIG": "1"}


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory):
    """Jupyter writes into folders of this test alone."""
    folder = tmp_path_factory.mktemp("jupyter")
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(name, str(folder / name.lower()))
        for name, value in OWN_KERNEL.items():
            patch.setenv(name, value)
        for name, value in mpi.environment(mpi.ANY_BACKEND).items():
            patch.setenv(name, value)
        yield folder


class Kernel:
    """A kernel, and what its cells have printed."""

    def __init__(self, folder):
        self.manager = KernelManager()
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.messages = []

    def run(self, code, on_output=None):
        """Runs a cell. Returns the reply; `messages` then holds the cell's messages."""
        self.messages = []

        def take(message):
            self.messages.append((message["msg_type"], message["content"]))
            if on_output is not None:
                on_output(message["content"])

        return self.client.execute_interactive(
            code, timeout=LIMIT, output_hook=take, stop_on_error=False
        )["content"]

    def printed(self, name="stdout"):
        return [
            content["text"]
            for kind, content in self.messages
            if kind == "stream" and content["name"] == name
        ]

    def value(self, code):
        reply = self.run(code)
        assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))
        (found,) = (c for kind, c in self.messages if kind == "execute_result")
        return eval(found["data"]["text/plain"])

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(folders):
    kernel = Kernel(folders)
    yield kernel
    kernel.end()


def ended(pids):
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


TRAIN = """
import easyddl as ddl
ranks = ddl.Ranks(2)

def train(steps):
    import keras
    import numpy as np
    x = np.random.default_rng(ddl.rank()).normal(size=(2 * steps, 4)).astype("float32")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(
        x, x[:, :1], batch_size=2, epochs=2,
        callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()],
    )
    return history.history["loss"], [each.tolist() for each in model.get_weights()]

results = ranks.run(train, args=(400,))
"""


def test_cells_train_with_a_progress_bar(kernel):
    reply = kernel.run(TRAIN)
    assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))
    printed = kernel.printed()
    text = "".join(printed)
    bar = re.findall(r"\[([01])\] (?:\x1b\[\d+m)*400/400", text)
    assert set(bar) == {"0"}
    # Keras rewrites the bar 20 times per second. Here are the lines, and few versions of them.
    assert len(printed) < 40 and len(text) < 20_000, (len(printed), len(text))
    first, second = kernel.value("results")
    assert first == second and first[0][1] < first[0][0]
    unwanted = "{'keras', 'tensorflow', 'jax', 'torch', 'mpi4py.MPI', 'easyddl._core'}"
    assert kernel.value(f"import sys; {unwanted} & set(sys.modules)") == set()


def test_an_exception_shows_the_line_of_the_cell(kernel):
    reply = kernel.run("def fail(x):\n    return 1 / x\n\nranks.run(fail, (0,))")
    assert (reply["status"], reply["ename"]) == ("error", "RankError")
    assert re.search(r"Rank 0 on host .*ZeroDivisionError", reply["evalue"])
    assert "return 1 / x" in reply["evalue"]


def test_an_interrupt_of_the_cell_ends_the_ranks(kernel):
    pids = kernel.value("ranks.run(os.getpid)")
    code = """
def rest():
    import time
    print("resting", flush=True)
    time.sleep(600)

ranks.run(rest)
"""
    seen = []

    def interrupt(content):
        if "resting" in content.get("text", "") and not seen:
            seen.append(True)
            kernel.manager.interrupt_kernel()

    reply = kernel.run(code, interrupt)
    assert seen and (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert ended(pids)
    reply = kernel.run("ranks.run(os.getpid)")
    assert "These ranks have ended: KeyboardInterrupt" in reply["evalue"]


def test_ranks_end_with_the_kernel(folders):
    kernel = Kernel(folders)
    try:
        pids = kernel.value(
            "import easyddl as ddl; ranks = ddl.Ranks(2); [w.pid for w in ranks._group.ranks]"
        )
        assert len(pids) == 2 and all(os.path.exists(f"/proc/{pid}") for pid in pids)
    finally:
        kernel.end()
    assert ended(pids)
