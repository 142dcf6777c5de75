import pathlib
import re

import pytest

from easyddl import backends

FOLDER = pathlib.Path(backends.__file__).parent
NAMES = {"devices", "private", "step", "submitter", "tensors", "trainer"}
PRIVATE = re.compile(
    r"tensorflow\.(python|compiler)|jax\._src|torch\._|"
    r"\._(trace|rng|version|add_control_input|post_accumulate_grad_hooks|"
    r"non_persistent_buffers_set)\b"
)
ABOVE = {
    *("callbacks", "checkpoint", "cli", "collectives", "data"),
    *("layers", "optimizers", "reducer", "training"),
}


@pytest.mark.parametrize("backend", sorted(backends._CLASSES))
def test_each_backend_has_the_same_files(backend):
    found = {path.stem for path in (FOLDER / backend).glob("*.py")}
    assert found >= {"__init__", *NAMES}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_private_names_of_a_framework_are_in_one_file(path):
    assert path.stem == "private" or not PRIVATE.search(path.read_text())


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_no_backend_imports_a_layer_above(path):
    imported = re.findall(r"(?:from|import) easyddl\.?(\w*)", path.read_text())
    assert not set(imported) & {*ABOVE, ""}


def test_a_backend_that_is_not_served(monkeypatch):
    monkeypatch.setattr(backends, "name", lambda: "numpy")
    assert backends.find() is None and backends.backend_of(1) is None
    with pytest.raises(NotImplementedError, match=r"tensorflow, jax, torch.*Received: numpy"):
        backends.require()
