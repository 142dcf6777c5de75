"""Saves in one process, which easyddl leaves as they are, and paths that it leaves to Keras."""

import io
import os
import pathlib
import time

import keras
import numpy as np
import pytest

from easyddl.checkpoint import atomic_files, model_files
from easyddl.compat import keras_saving, patches
from easyddl.hosts import launched_process
from easyddl.machine import processes


class Files:
    """Stands for a module of Keras that writes model files and asks whether to overwrite them."""

    def __init__(self):
        self.written = []
        self.save = self._save

    def _save(self, model, filepath, **options):
        self.written.append((model, filepath, options))
        if isinstance(filepath, str) and "://" not in filepath:
            pathlib.Path(filepath).write_text(model)


@pytest.fixture
def files():
    made = Files()
    patches.install(made, "save", model_files._atomic)
    return made


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(launched_process, "is_rank_of_several", lambda: True)


def test_alone_nothing_changes(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("one process writes to the path itself")

    monkeypatch.setattr(atomic_files, "write_entries", fail)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    model.save(tmp_path / "m", zipped=False)
    answers = iter(["n", "y"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    before = (tmp_path / "m.keras").stat().st_mtime_ns
    model.save(tmp_path / "m.keras", overwrite=False)
    assert (tmp_path / "m.keras").stat().st_mtime_ns == before
    model.save(tmp_path / "m.keras", overwrite=False)
    assert (tmp_path / "m.keras").stat().st_mtime_ns > before
    for path in (tmp_path / "m.keras", tmp_path / "m"):
        loaded = keras.saving.load_model(path)
        np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_a_path_is_written_elsewhere_first(tmp_path, files, ranks):
    path = tmp_path / "m.keras"
    files.save("model", filepath=path, option=1)
    ((model, written, options),) = files.written
    assert (model, options) == ("model", {"option": 1})
    assert os.path.basename(written) == "m.keras" and written != str(path)
    assert path.read_text() == "model"


@pytest.mark.parametrize(
    "path",
    [
        "gs://bucket/m.keras",
        pathlib.PurePosixPath("/gcs/bucket/m.keras"),
        "hf://user/model",
        io.BytesIO(),
        b"m.keras",
        pathlib.Path("/dev/null"),
        "",
        None,
    ],
)
def test_what_is_no_local_path_is_left_to_keras(path, ranks):
    assert not model_files._is_atomic(path)


def test_what_is_written_atomically_already(tmp_path, files, ranks):
    atomic_files.write_entries(str(tmp_path / "m.keras"), lambda path: files.save("model", path))
    (written,) = (path for _, path, _ in files.written)
    assert os.path.dirname(os.path.dirname(written)) == str(tmp_path)  # one temporary directory
    assert (tmp_path / "m.keras").read_text() == "model"


def test_messages_and_errors_name_the_path_that_was_passed(tmp_path, capsys):
    from keras.src.utils import io_utils

    with pytest.raises(ValueError, match="wrong: final"), keras_saving.shown_as("/new/m", "final"):
        io_utils.print_msg("Saved at '/new/m'.")
        raise ValueError("wrong: /new/m", 3)
    assert capsys.readouterr().out == "Saved at 'final'.\n"
    io_utils.print_msg("Saved at '/new/m'.")
    assert "/new/m" in capsys.readouterr().out


def test_all_functions_that_write_files_are_patched():
    writers = keras_saving.writers()
    assert {name for _, name in writers} >= {"save_model", "save_weights_only", "export"}
    for owner, name in (*writers, *keras_saving.prompts()):
        assert hasattr(getattr(owner, name), "__wrapped__"), name
        assert getattr(owner, name).__name__ == name


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_the_host_does_not_tell_the_age_of_a_file(hours, tmp_path, monkeypatch):
    """That of the file server counts, which may be wrong or right by hours."""
    old, new = tmp_path / "old", tmp_path / "new"
    new.touch()
    old.touch()
    an_hour_ago = time.time() - 3600
    os.utime(old, (an_hour_ago, an_hour_ago))
    actual = time.time
    monkeypatch.setattr(time, "time", lambda: actual() + 3600 * hours)
    monkeypatch.setattr(processes, "age", lambda: 60.0)
    assert model_files._is_older_than_this_process(old)
    assert not model_files._is_older_than_this_process(new)
