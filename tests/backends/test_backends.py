import pathlib
import re

import pytest

from easyddl import backends

FOLDER = pathlib.Path(backends.__file__).parent
PRIVATE = re.compile(
    r"tensorflow\.(python|compiler)|jax\._src|torch\._|"
    r"\._(trace|rng|version|add_control_input|post_accumulate_grad_hooks|"
    r"non_persistent_buffers_set)\b"
)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_private_names_of_a_framework_are_in_one_file(path):
    assert path.stem == "private" or not PRIVATE.search(path.read_text())


def test_a_backend_that_is_not_served(monkeypatch):
    monkeypatch.setattr(backends, "name", lambda: "numpy")
    assert backends.find() is None and backends.backend_of(1) is None
    with pytest.raises(NotImplementedError, match=r"tensorflow, jax, torch.*Received: numpy"):
        backends.require()
