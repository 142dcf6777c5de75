"""Ranks that save a model to the same path at once, on every rank of one job."""

import contextlib
import functools
import inspect
import io
import logging
import os
import pathlib
import threading
import time
import warnings
import zipfile

import keras
import numpy as np
from fits import COMM, RANK, SIZE, both, fails, fit, in_shared_folder, new_model
from mpi import run_checks
from steps import BACKEND

import easyddl as ddl
from easyddl.checkpoint import atomic_files

SAVES = 10


class Pause(keras.layers.Layer):
    """A layer that calls a function when the model is saved, in the middle of the file."""

    act = staticmethod(lambda: None)

    def call(self, x):
        return x

    def save_own_variables(self, store):
        super().save_own_variables(store)
        type(self).act()


@functools.cache
def trained():
    """A model that all ranks have trained together, each with its own samples."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(RANK)
    layers = [keras.layers.Dense(200, "tanh"), keras.layers.Dropout(0.3), Pause()]
    model = new_model(layers=[*layers, keras.layers.Dense(200), keras.layers.Dense(1)])
    fit(model)
    return model


def weights_of_the_root():
    return COMM.bcast(trained().get_weights())


def assert_loads(path):
    """A file or directory holds the weights, as this rank alone reads it with Keras."""
    path = pathlib.Path(path)
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as file:
            assert file.testzip() is None
    if ".weights" in path.name:
        loaded = keras.models.clone_model(trained())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer, which the clone has not
            loaded.load_weights(path)
    else:
        custom = {"Pause": Pause}
        loaded = keras.saving.load_model(path, custom_objects=custom, compile=False)
    for weight, expected in zip(loaded.get_weights(), weights_of_the_root(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def assert_holds(folder, *names):
    """A folder holds some files, and nothing temporary. All ranks call it."""
    COMM.Barrier()
    assert sorted(os.listdir(folder)) == sorted(names), os.listdir(folder)
    COMM.Barrier()


@contextlib.contextmanager
def pausing(act):
    """A context in which something happens in the middle of each file."""
    Pause.act = staticmethod(act)
    try:
        yield
    finally:
        Pause.act = staticmethod(lambda: None)


@contextlib.contextmanager
def quiet():
    """A context without what Keras says of the format `.h5`."""
    absl = logging.getLogger("absl")
    absl.disabled, before = True, absl.disabled
    try:
        yield
    finally:
        absl.disabled = before


@in_shared_folder
def check_all_public_functions(folder):
    model = trained()
    saves = {
        "m.keras": lambda path: keras.saving.save_model(model, path),
        "n.keras": lambda path: keras.models.save_model(model, filepath=pathlib.Path(path)),
        "m.weights.h5": lambda path: model.save_weights(path),
        "n.weights.h5": lambda path: model.save_weights(filepath=path, overwrite=True),
        "m.h5": lambda path: model.save(path, include_optimizer=False),
        "new/folder/m.h5": lambda path: model.save(path),
    }
    if hasattr(keras, "_tf_keras"):
        saves["o.keras"] = lambda path: keras._tf_keras.keras.models.save_model(model, path)
    for name, save in saves.items():
        path = str(folder / name)
        with pausing(COMM.Barrier), quiet():  # all ranks are in the middle of it at once
            save(path)
        assert_loads(path)
    assert_holds(folder, "new", *(name for name in saves if "/" not in name))
    assert_holds(folder / "new" / "folder", "m.h5")


@in_shared_folder
def check_an_edited_weights_file(folder):
    if not hasattr(keras.saving, "KerasFileEditor"):
        return
    trained().save_weights(folder / "own.weights.h5")
    COMM.Barrier()
    with contextlib.redirect_stdout(io.StringIO()):
        editor = keras.saving.KerasFileEditor(str(folder / "own.weights.h5"))
    for _ in range(SAVES):
        COMM.Barrier()
        editor.save(folder / "edited.weights.h5")
        assert_loads(folder / "edited.weights.h5")
    assert_holds(folder, "edited.weights.h5", "own.weights.h5")


@in_shared_folder
def check_directories(folder):
    path = folder / "model"
    for _ in range(3):  # absent, then existing
        COMM.Barrier()
        with pausing(COMM.Barrier):
            trained().save(path, zipped=False)
        COMM.Barrier()
        assert_loads(path)
    assert_holds(folder, "model")
    names = os.listdir(path)
    assert {"config.json", "metadata.json", "model.weights.h5"} <= set(names), names
    COMM.Barrier()
    if RANK == 0:
        (path / "notes").write_text("mine")
    COMM.Barrier()
    trained().save(path, zipped=False)
    assert_holds(path, *names, "notes")
    assert (path / "notes").read_text() == "mine"


@in_shared_folder
def check_shards(folder):
    if "max_shard_size" not in inspect.signature(keras.Model.save_weights).parameters:
        return  # of an older Keras
    for _ in range(3):
        COMM.Barrier()
        with pausing(COMM.Barrier):
            trained().save_weights(folder / "m.weights.json", max_shard_size=1.53e-4)
        COMM.Barrier()
        assert_loads(folder / "m.weights.json")
    names = os.listdir(folder)
    assert len(names) > 2, names
    assert_holds(folder, "m.weights.json", *(n for n in names if n.startswith("m_0000")))


@in_shared_folder
def check_exports(folder):
    if BACKEND != "tensorflow":
        return  # others need more packages
    import tensorflow as tf

    x = np.random.default_rng(RANK).standard_normal((5, 6)).astype("float32")
    kernels = weights_of_the_root()
    expected = np.tanh(x @ kernels[0] + kernels[1])
    expected = (expected @ kernels[2] + kernels[3]) @ kernels[4] + kernels[5]
    for _ in range(2):  # absent, then existing
        printed = io.StringIO()
        COMM.Barrier()
        with contextlib.redirect_stdout(printed):
            trained().export(str(folder / "served"))
        assert f"Saved artifact at '{folder / 'served'}'" in printed.getvalue(), printed.getvalue()
        COMM.Barrier()
        served = tf.saved_model.load(str(folder / "served"))
        np.testing.assert_allclose(served.serve(x), expected, rtol=1e-4, atol=1e-5)
    assert_holds(folder, "served")


@in_shared_folder
def check_checkpoints_of_tensorflow(folder):
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    checkpoint = tf.train.Checkpoint(model=trained())
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
    for number in range(1, SAVES + 1):
        COMM.Barrier()
        assert manager.save() == manager.latest_checkpoint == str(folder / f"ckpt-{number}")
    kept = [f"ckpt-{number}" for number in (SAVES - 1, SAVES)]
    files = [f"{name}{end}" for name in kept for end in (".data-00000-of-00001", ".index")]
    assert_holds(folder, "checkpoint", *files)
    for name in kept:
        loaded = keras.models.clone_model(trained())
        tf.train.Checkpoint(model=loaded).restore(str(folder / name)).expect_partial()
        for weight, expected in zip(loaded.get_weights(), weights_of_the_root(), strict=True):
            np.testing.assert_array_equal(weight, expected)


@in_shared_folder
def check_one_rank_saves_alone(folder):
    for rank in range(SIZE):
        if rank == RANK:
            trained().save(folder / f"{rank}.keras")
            trained().save(folder / str(rank), zipped=False)
            trained().save(folder / str(rank), zipped=False)  # over an existing one
        COMM.Barrier()
        for path in (folder / f"{rank}.keras", folder / str(rank)):
            assert_loads(path)
    assert_holds(folder, *(f"{r}.keras" for r in range(SIZE)), *map(str, range(SIZE)))


@in_shared_folder
def check_overwrite_false_asks_nobody(folder):
    model, path = trained(), folder / "m.keras"
    an_hour_ago = (time.time() - 3600,) * 2

    def refused(save, old):
        COMM.Barrier()
        if RANK == 0:
            os.utime(old, an_hour_ago)
            content = old.read_bytes()
        COMM.Barrier()
        error = fails(save)
        assert isinstance(error, FileExistsError), repr(error)
        assert "overwrite=False" in str(error) and str(folder) in str(error), error
        assert ".new" not in str(error), error
        COMM.Barrier()
        assert RANK != 0 or old.read_bytes() == content

    # Another rank may have written it a moment ago, or this one: nobody is asked.
    for _ in range(2):
        model.save(path, overwrite=False)
        model.save_weights(folder / "m.weights.h5", overwrite=False)
        model.save(folder / "m", zipped=False, overwrite=False)
    refused(lambda: model.save(path, overwrite=False), path)
    weights = folder / "m.weights.h5"
    refused(lambda: model.save_weights(weights, overwrite=False), weights)
    refused(
        lambda: model.save(folder / "m", zipped=False, overwrite=False),
        folder / "m" / "config.json",
    )
    model.save(path)
    assert_loads(path)
    assert_holds(folder, "m", "m.keras", "m.weights.h5")


@in_shared_folder
def check_links_remain(folder):
    if RANK == 0:
        (folder / "to").mkdir()
        (folder / "latest.keras").symlink_to(folder / "to" / "m.keras")
    COMM.Barrier()
    trained().save(folder / "latest.keras")
    assert_loads(folder / "to" / "m.keras")
    assert (folder / "latest.keras").is_symlink()
    assert_holds(folder, "latest.keras", "to")
    assert_holds(folder / "to", "m.keras")


@in_shared_folder
def check_permissions_remain(folder):
    names = ["m.keras", "m.weights.h5"]
    if RANK == 0:
        for name in names:
            (folder / name).touch(mode=0o600)
            os.link(folder / name, folder / f"other-{name}")
    COMM.Barrier()
    trained().save(folder / names[0])
    trained().save_weights(folder / names[1])
    COMM.Barrier()
    for name in (*names, *(f"other-{name}" for name in names)):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
        assert_loads(folder / name)


@in_shared_folder
def check_paths_that_keras_refuses(folder):
    """They raise Keras's error, and nothing is made."""
    model = trained()
    if RANK == 0:
        (folder / "loop.keras").symlink_to("loop.keras")
    COMM.Barrier()
    for save, name in (
        (model.save, "mistyped/m.keras"),
        (model.save, "~/m.keras"),
        (model.save_weights, "mistyped/m.weights.h5"),
        (model.save, "loop.keras"),
    ):
        error = fails(functools.partial(save, folder / name))
        assert isinstance(error, OSError), repr(error)
        assert f"'{folder / name}'" in str(error) and ".new" not in str(error), error
    assert_holds(folder, "loop.keras")


@in_shared_folder
def check_any_name(folder):
    names = ["m" * 249 + ".keras", os.fsdecode(b"m\xff.keras")]
    for name in names:
        trained().save(folder / name)
    assert_holds(folder, *names)
    for name in names:
        assert_loads(folder / name)


@in_shared_folder
def check_threads_save_to_one_path(folder):
    threads = [threading.Thread(target=trained().save, args=(folder / "m.keras",)) for _ in "four"]
    with pausing(functools.partial(time.sleep, 0.1)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_holds(folder, "m.keras")
    assert_loads(folder / "m.keras")


@in_shared_folder
def check_errors_name_the_path_that_was_passed(folder):
    error = fails(lambda: trained().save(folder / "m.keras", zipped=False))
    assert isinstance(error, ValueError) and str(folder / "m.keras") in str(error), error
    assert ".new" not in str(error), error
    assert_holds(folder)


@in_shared_folder
def check_a_failed_save_keeps_the_file(folder):
    trained().save(folder / "m.keras")
    COMM.Barrier()

    def fail():
        raise OSError("no space")

    with pausing(fail):
        error = fails(lambda: trained().save(folder / "m.keras"))
    assert "no space" in str(error), error
    assert_loads(folder / "m.keras")
    assert_holds(folder, "m.keras")


def check_open_files_are_the_scripts_own():
    file = io.BytesIO()
    trained().save(file, zipped=False)
    with zipfile.ZipFile(file) as saved:
        assert saved.testzip() is None and "config.json" in saved.namelist()


@in_shared_folder
def check_checkpoints_of_easyddl_write_once(folder):
    """`ddl.ModelCheckpoint` writes atomically on the root already, and Keras's as the root."""
    written, write = [], atomic_files.write_entries
    atomic_files.write_entries = lambda path, *rest, **kw: (
        written.append(path),
        write(path, *rest, **kw),
    )
    names = ("own", "plain")
    try:
        model = new_model()
        own = ddl.ModelCheckpoint(folder / "own.keras")
        plain = keras.callbacks.ModelCheckpoint(folder / "plain.keras")
        x = np.random.default_rng(RANK).standard_normal((16, 6)).astype("float32")
        model.fit(x, x.sum(1), verbose=0, epochs=2, callbacks=both(own, plain))
    finally:
        atomic_files.write_entries = write
    paths = [str(folder / f"{name}.keras") for name in names]
    assert list(map(str, written)) == (paths * 2 if RANK == 0 else []), written
    for name in names:
        saved = keras.saving.load_model(folder / f"{name}.keras").get_weights()
        for weight, expected in zip(saved, model.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, expected)
    assert_holds(folder, "own.keras", "plain.keras")


if __name__ == "__main__":
    run_checks(globals())
