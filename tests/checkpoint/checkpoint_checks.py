"""What `ModelCheckpoint` and `BackupAndRestore` do, on every rank of one job."""

import contextlib
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings

import keras
import numpy as np
from fits import COMM, RANK, SIZE, both, fails, in_shared_folder, said
from interrupted_fits import (
    STEPS,
    Interrupt,
    assert_interrupted_alike,
    assert_same_bits,
    assert_same_on_all,
    data,
    fit,
)
from mpi import run_checks
from steps import TAKES_SEVERAL_STEPS

import easyddl as ddl
from easyddl.checkpoint import atomic_files
from easyddl.reducer import gradient_reducer
from easyddl.training.state import model_state


def new_model(optimizer="sgd", **arguments):
    """A small model, which TensorFlow compiles soon."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.4), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **arguments)
    return model


def deep_model(optimizer="adam"):
    inner = [keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization()]
    outer = [keras.layers.Dropout(0.4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), keras.Sequential(inner), *outer])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


@in_shared_folder
def check_an_interrupted_training_goes_on_bit_by_bit(folder):
    def trained_before():
        model = deep_model()
        fit(model, epochs=1, steps=2)
        return model

    assert_interrupted_alike(folder, trained_before, (2, 1), [2, 3])


@in_shared_folder
def check_it_goes_on_in_the_middle_of_an_epoch(folder):
    # Saved after steps 3, 6, 9 and 12: in epoch 2 after 2 of its 5 steps.
    assert_interrupted_alike(folder, deep_model, (2, 4), [2, 3], save_freq=3)


@in_shared_folder
def check_a_step_of_ones_own_goes_on_in_the_middle_of_an_epoch(folder):
    if keras.backend.backend() != "tensorflow":
        return  # Keras itself builds the metrics, by a call of the model
    import tensorflow as tf

    class Halves(keras.Model):
        """A model that cannot take the batches as they come, and has two optimizers or three."""

        def __init__(self, uses_compiled, optimizer="adam"):
            super().__init__()
            self.uses_compiled, self.of_kernel = uses_compiled, [keras.optimizers.Adam(0.01)]
            self.of_bias = keras.optimizers.Adam(0.01)
            self.dense = keras.layers.Dense(1)
            self.compile(optimizer, "mse", metrics=["mae"])
            self((np.zeros((1, 3)), np.zeros((1, 3))))

        def call(self, halves):
            left, right = halves
            return self.dense(left) - self.dense(right)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self((x[:, :3], x[:, 3:]))
                loss = self.compute_loss(y=y, y_pred=y_pred)
            kernel, bias = tape.gradient(loss, self.trainable_variables)
            of_kernel = self.optimizer if self.uses_compiled else self.of_kernel[0]
            of_kernel.apply([kernel], [self.dense.kernel])
            self.of_bias.apply([bias], [self.dense.bias])
            return self.compute_metrics(x, y, y_pred)

    make = functools.partial(Halves, uses_compiled=True)
    assert_interrupted_alike(folder, make, (2, 4), [2, 3], save_freq=3)
    for optimizer in ("adam", None):
        make = functools.partial(Halves, uses_compiled=False, optimizer=optimizer)
        assert_interrupted_alike(folder, make, (2, 1), [2, 3])


class Remembers(keras.layers.Layer):
    """Adds a part of what it has seen, in variables of Keras and of TensorFlow, to its output."""

    def __init__(self):
        super().__init__()
        self.sums = [self.add_weight((6,), initializer="zeros", trainable=False)]
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            self.sums.append(tf.Variable(tf.zeros(6)))

    def call(self, x, training=False):
        if training:
            for each in self.sums:
                each.assign(each + keras.ops.sum(x, axis=0))
        return x + 0.01 * sum(self.sums)


@in_shared_folder
def check_state_of_layers_goes_on_in_the_middle_of_an_epoch(folder):
    made = []

    def make():
        made.append(Remembers())
        model = keras.Sequential([keras.Input((6,)), made[-1], keras.layers.Dense(1)])
        model.compile(sgd(), "mse", metrics=["mae"])
        return model

    assert_interrupted_alike(folder, make, (2, 4), [2, 3], save_freq=3)
    whole, _, again = ([np.array(each) for each in layer.sums] for layer in made)
    np.testing.assert_array_equal(again, whole)


@in_shared_folder
def check_ranks_with_different_numbers_of_batches_go_on(folder):
    # Saved after 4 of the 5 batches that all ranks have, and after 3 in the next epoch.
    steps = STEPS + (RANK == 0)
    assert_interrupted_alike(folder, deep_model, (1, 4), [1, 2, 3], steps=steps, save_freq=4)


@in_shared_folder
def check_the_states_of_a_stateful_layer_are_those_of_each_rank(folder):
    if keras.backend.backend() != "tensorflow":
        return  # Keras's stateful layers do not train on PyTorch, and keep no states on JAX

    def train(name, *callbacks):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.GRU(3, stateful=True), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2, 3), batch_size=4), *layers])
        model.compile(sgd(), "mse")
        x = np.random.default_rng(RANK).standard_normal((4 * STEPS, 2, 3)).astype("float32")
        callbacks = [ddl.BackupAndRestore(folder / name, save_freq=3), *callbacks]
        return model, lambda: model.fit(
            x, x[:, 0, :1], batch_size=4, epochs=2, shuffle=False, verbose=0,
            callbacks=both(*callbacks),
        )  # fmt: skip

    whole, begin = train("whole")
    begin()
    assert isinstance(fails(train("parts", Interrupt(1, 4))[1]), KeyError)
    again, begin = train("parts")
    assert "does not track" not in said(begin)
    assert_same_bits(again, whole)
    states = [[each.numpy() for each in model.layers[0].states] for model in (again, whole)]
    np.testing.assert_array_equal(*states)
    everyone = COMM.allgather(states[0][0].tolist())
    assert SIZE == 1 or everyone[0] != everyone[1]


@in_shared_folder
def check_averages_in_place_of_the_weights_are_exchanged_again(folder):
    def make():
        return new_model(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5))

    def swap():
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    assert_interrupted_alike(folder, make, (2, 1), [2, 3], extra=swap)


@in_shared_folder
def check_an_epoch_that_is_shorter_than_what_is_skipped(folder):
    def train(steps, *callbacks):
        model = new_model(sgd())
        backup = ddl.BackupAndRestore(folder / "backup", save_freq=4)
        return model, lambda: fit(model, backup, *callbacks, epochs=2, steps=steps)

    assert isinstance(fails(train(STEPS, Interrupt(0, 4))[1]), KeyError)
    model, again = train(3)
    again()
    taken = int(model.optimizer.iterations.numpy())
    assert taken == 4 + 3, taken  # the first epoch has fewer steps than are skipped


@in_shared_folder
def check_it_goes_on_after_the_last_step_of_an_epoch(folder):
    assert_interrupted_alike(folder, lambda: new_model(sgd()), (2, 0), [1, 2, 3], save_freq=5)


@in_shared_folder
def check_steps_that_are_passed_over_leave_no_trace(folder):
    class Decay(keras.callbacks.Callback):
        """Compounds, also before a step that is none."""

        def on_train_batch_begin(self, batch, logs=None):
            optimizer = self.model.optimizer
            optimizer.learning_rate = 0.97 * float(optimizer.learning_rate.numpy())

    assert_interrupted_alike(
        folder, lambda: new_model(sgd()), (2, 4), [2, 3], extra=lambda: [Decay()], save_freq=3
    )


@in_shared_folder
def check_several_steps_per_execution(folder):
    if not TAKES_SEVERAL_STEPS:
        return

    # Looked at after each execution: saved after 4 and 8 steps, the latter 2 of an epoch's 6.
    def make():
        return new_model(sgd(), steps_per_execution=2)

    assert_interrupted_alike(folder, make, (1, 4), [1, 2, 3], steps=6, save_freq=3)


@in_shared_folder
def check_the_last_execution_of_an_epoch_is_shorter(folder):
    if not TAKES_SEVERAL_STEPS:
        return

    # Saved after all 7 steps of an epoch, which takes three executions to skip.
    def make():
        return new_model(sgd(), steps_per_execution=3)

    assert_interrupted_alike(folder, make, (2, 0), [1, 2, 3], steps=7, save_freq=3)


@in_shared_folder
def check_an_execution_is_skipped_as_a_whole(folder):
    """Saved after 6 of 12 steps, by executions of 2: no execution of 4 ends there."""
    if not TAKES_SEVERAL_STEPS:
        return

    def train(steps_per_execution, *callbacks):
        backup = ddl.BackupAndRestore(folder / "backup", save_freq=6)
        model = new_model(sgd(), steps_per_execution=steps_per_execution)
        return model, lambda: fit(model, backup, *callbacks, epochs=1, steps=12)

    _, begin = train(2, Interrupt(0, 8))
    assert isinstance(fails(begin), KeyError)
    model, again = train(4)
    again()
    # Of the 6 steps 4 are skipped. The other 8 steps of the epoch are taken.
    taken = int(model.optimizer.iterations.numpy())
    assert taken == 6 + 8, taken


@in_shared_folder
def check_a_later_fit_begins_at_its_own_epoch(folder):
    model = new_model()
    backup = ddl.BackupAndRestore(folder / "backup")
    assert isinstance(fails(lambda: fit(model, backup, Interrupt(1))), KeyError)
    assert fit(model, backup).epoch == [1, 2, 3]
    assert fit(model, epochs=2).epoch == [0, 1]


@in_shared_folder
def check_the_ranks_draw_different_masks_after_a_restart(folder):
    keras.utils.set_random_seed(1)
    backup = ddl.BackupAndRestore(folder / "backup")
    assert isinstance(fails(lambda: fit(new_model(), backup, Interrupt(2))), KeyError)
    model = new_model()
    fit(model, backup)
    dropout = next(layer for layer in model.layers if hasattr(layer, "rate"))
    seeds = COMM.allgather(int(dropout.seed_generator.state.numpy()[0]))
    assert len(set(seeds)) == SIZE, seeds


@in_shared_folder
def check_a_backup_that_cannot_be_read(folder):
    def backup(**arguments):
        return ddl.BackupAndRestore(folder / "backup", **arguments)

    keras.utils.set_random_seed(3 + RANK)
    model = new_model()
    assert isinstance(
        fails(lambda: fit(model, backup(double_checkpoint=True), Interrupt(3))), KeyError
    )
    COMM.Barrier()
    if RANK == 0:
        names = sorted(path.name for path in (folder / "backup").iterdir())
        assert names == ["backup-2", "backup-3"], names
        path = folder / "backup" / "backup-3" / "variables.npz"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1  # one bit
        path.write_bytes(content)
        shutil.copytree(folder / "backup", folder / "empty")
        (folder / "empty" / "backup-3" / "variables.npz").write_bytes(b"")
    COMM.Barrier()
    with contextlib.redirect_stderr(sys.stdout):
        again = {"double_checkpoint": True, "delete_checkpoint": False}
        assert fit(new_model(), ddl.BackupAndRestore(folder / "empty", **again)).epoch == [2, 3]
        left = fit(new_model(), backup(**again)).epoch
    assert left == [2, 3], left  # the one before the last
    if RANK == 0:
        for state in (folder / "backup").glob("backup-*/state.json"):
            state.write_text("{")
    COMM.Barrier()
    error = fails(lambda: fit(new_model(), backup()))
    assert isinstance(error, OSError) and "cannot be read" in str(error), error
    assert_same_on_all(str(error))


@in_shared_folder
def check_a_backup_of_another_model(folder):
    backup = ddl.BackupAndRestore(folder / "backup")
    assert isinstance(fails(lambda: fit(new_model(), backup, Interrupt(1))), KeyError)
    error = fails(lambda: fit(new_model(sgd()), backup))
    assert isinstance(error, ValueError) and "another model or optimizer" in str(error), error
    assert_same_on_all(str(error))


@in_shared_folder
def check_a_model_that_is_not_built(folder):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if keras.backend.backend() != "tensorflow":  # Keras has built it by then
        fit(model, ddl.BackupAndRestore(folder / "backup"))
        return
    error = fails(lambda: fit(model, ddl.BackupAndRestore(folder / "backup")))
    assert isinstance(error, ValueError) and "is not built" in str(error), error


@in_shared_folder
def check_an_ignored_signal_is_told_once(folder):
    backup = ddl.BackupAndRestore(folder / "backup", signals=("SIGTERM", "SIGUSR2"))
    previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    told = [said(lambda: fit(new_model(), backup, epochs=1)) for _ in range(2)]
    signal.signal(signal.SIGUSR2, previous)
    lines = "".join(told).count("this process ignores SIGUSR2, which")
    assert lines == (RANK == 0), told


@in_shared_folder
def check_arguments_that_differ(folder):
    if SIZE == 1:
        return
    for kind, path in ((ddl.BackupAndRestore, "backup"), (ddl.ModelCheckpoint, "m.keras")):
        callback = kind(folder / path, save_freq=2 + RANK % 2)
        error = fails(lambda c=callback: fit(new_model(), c))
        assert isinstance(error, RuntimeError), repr(error)
        assert f"{kind.__name__} with save_freq=3" in str(error), error


def check_rank_zero_refuses_them():
    for callback in (ddl.ModelCheckpoint("m.keras"), ddl.BackupAndRestore("backup")):
        error = fails(lambda c=callback: ddl.RankZero(c))
        assert isinstance(error, TypeError) and "on all ranks" in str(error), error


def check_moving_statistics_are_averaged():
    model = deep_model()
    extra = keras.layers.BatchNormalization(dtype="float16", name="half")
    model.add(extra)
    plain = model.layers[0].layers[-1]
    own = {}
    for layer, shape in ((plain, (4,)), (extra, (1,))):
        for name in ("moving_mean", "moving_variance"):
            variable = getattr(layer, name)
            numbers = [
                np.random.default_rng([rank, len(own)]).random(shape) for rank in range(SIZE)
            ]
            own[variable.path] = variable, [n.astype(variable.dtype) for n in numbers]
            variable.assign(own[variable.path][1][RANK])
    untouched = [weight.numpy().copy() for weight in model.trainable_weights]
    model_state.average_own_state(model)
    assert len(own) == 4
    for variable, numbers in own.values():
        mean = np.mean(np.stack(numbers).astype("float64"), axis=0).astype(variable.dtype)
        np.testing.assert_array_equal(variable.numpy(), mean)
    before = [variable.numpy().tobytes() for variable, _ in own.values()]
    model_state.average_own_state(model)  # equal numbers stay just what they are
    assert [variable.numpy().tobytes() for variable, _ in own.values()] == before
    for weight, number in zip(model.trainable_weights, untouched, strict=True):
        np.testing.assert_array_equal(weight.numpy(), number)
    model_state.average_own_state(keras.Sequential([keras.layers.Dense(1)]))


@in_shared_folder
def check_saved_in_the_middle_of_an_epoch_with_averaged_statistics(folder):
    class Note(keras.callbacks.Callback):
        """What ranks have gathered when the file is written, before anyone averages it."""

        def on_train_batch_end(self, batch, logs=None):
            layer = self.model.layers[0].layers[-1]
            if batch == 1:
                mine = layer.moving_mean.numpy()
                self.want = np.mean(COMM.allgather(mine.astype("float64")), axis=0)

    keras.utils.set_random_seed(RANK)
    note, path = Note(), folder / "m.keras"
    error = fails(
        lambda: fit(deep_model(), note, ddl.ModelCheckpoint(path, save_freq=2), Interrupt(0, 2))
    )
    assert isinstance(error, KeyError)
    saved = keras.saving.load_model(path).layers[0].layers[-1].moving_mean.numpy()
    np.testing.assert_array_equal(saved, note.want.astype("float32"))


@in_shared_folder
def check_files_of_all_kinds(folder):
    class AtItsEnd(keras.callbacks.Callback):
        """All ranks find the file as soon as they go on."""

        def on_epoch_end(self, epoch, logs=None):
            assert all(path.exists() for path in paths)

    names = ("m.keras", "m.h5", "m-{epoch}.weights.h5")
    try:
        keras.callbacks.ModelCheckpoint("m.h5")
    except ValueError:
        names = (names[0], names[2])  # of an older Keras
    paths = [folder / "sub" / name.format(epoch=1) for name in names]
    if RANK == 0:
        (folder / "sub").mkdir()
        (folder / "sub" / ".lock-m-7.weights.h5").touch()  # of a job that was killed
        (folder / "sub" / ".new-m-7.weights.h5-abcd_123").mkdir()
    COMM.Barrier()
    checkpoints = [
        ddl.ModelCheckpoint(folder / "sub" / name, save_weights_only="weights" in name)
        for name in names
    ]
    keras.utils.set_random_seed(RANK)
    model, write = new_model(), atomic_files.write_entries

    def write_slowly(*arguments, **options):
        time.sleep(0.3)
        write(*arguments, **options)

    atomic_files.write_entries = write_slowly
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras's words on the format `.h5`
            fit(model, *checkpoints, AtItsEnd(), epochs=1)
    finally:
        atomic_files.write_entries = write
    COMM.Barrier()
    assert sorted(folder.glob("sub/*")) == sorted(paths) and not list(folder.glob("sub/.*"))
    want = model.predict(data()[0], verbose=0)
    for path in paths:
        if path.name.endswith(".weights.h5"):
            loaded = new_model()
            loaded.optimizer.build(loaded.trainable_variables)
            loaded.load_weights(path)
        else:
            # Without what it was compiled with: Keras cannot read its own "mse" in a `.h5`.
            loaded = keras.saving.load_model(path, compile=False)
        np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
        if SIZE == 1:
            np.testing.assert_array_equal(loaded.predict(data()[0], verbose=0), want)


@in_shared_folder
def check_the_best_is_that_of_all_ranks(folder):
    """What is monitored is what all ranks make together, of which each rank has a part."""

    class Report(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.seen = [*getattr(self, "seen", []), logs["loss"]]

    path, report = folder / "best.keras", Report()
    checkpoint = ddl.ModelCheckpoint(path, "loss", save_best_only=True, mode="max")
    keras.utils.set_random_seed(RANK)
    model = new_model("sgd")
    fit(model, report, checkpoint)
    assert checkpoint.best == max(report.seen)
    steps = int(keras.saving.load_model(path).optimizer.iterations.numpy())
    assert steps == STEPS * (1 + int(np.argmax(report.seen)))
    assert_same_on_all(checkpoint.best)


@in_shared_folder
def check_ranks_with_other_numbers_decide_alike(folder):
    # A batch's loss falls on the root and rises elsewhere: each alone would decide otherwise.
    class Change(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logs["loss"] = -batch if RANK == 0 else batch

    checkpoint = ddl.ModelCheckpoint(
        folder / "m.keras", "loss", save_best_only=True, mode="min", save_freq=1,
        initial_value_threshold=0.5,
    )  # fmt: skip
    checkpoint._set_monitor_op() if hasattr(checkpoint, "_set_monitor_op") else None
    fit(new_model(), Change(), checkpoint, epochs=1)
    assert checkpoint.best == 1 - STEPS
    assert_same_on_all(checkpoint.best)


@in_shared_folder
def check_a_directory_that_cannot_be_made(folder):
    (folder / "file").write_text("")
    COMM.Barrier()
    for callback in (
        ddl.ModelCheckpoint(folder / "file" / "m.keras"),
        ddl.BackupAndRestore(folder / "file" / "backup"),
    ):
        error = fails(lambda c=callback: fit(new_model(), c, epochs=1))
        assert isinstance(error, OSError), repr(error)
        assert_same_on_all((type(error), str(error)))
    fit(new_model(), epochs=1)  # the ranks are still together


class FullDisk(keras.callbacks.Callback):
    """After an epoch no file can grow beyond some bytes on the root, and the disk says so."""

    def __init__(self):
        super().__init__()
        self.at_end = contextlib.ExitStack()

    def on_epoch_end(self, epoch, logs=None):
        if RANK == 0:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            self.at_end.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))


class DiskThatSaysSo(FullDisk):
    def on_epoch_end(self, epoch, logs=None):
        statvfs = os.statvfs
        self.at_end.callback(setattr, os, "statvfs", statvfs)
        os.statvfs = lambda path: os.statvfs_result((*statvfs(path)[:4], 0, *statvfs(path)[5:]))


@in_shared_folder
def check_a_disk_that_is_full(folder):
    kinds = {
        "m.keras": (ddl.ModelCheckpoint, FullDisk),
        # HDF5 would crash where a write fails, and so it is asked before.
        "m.weights.h5": (
            functools.partial(ddl.ModelCheckpoint, save_weights_only=True),
            DiskThatSaysSo,
        ),
        "backup": (functools.partial(ddl.BackupAndRestore, delete_checkpoint=False), FullDisk),
    }
    for name, (kind, fault) in kinds.items():
        keras.utils.set_random_seed(RANK)
        fit(new_model(), kind(folder / name), epochs=1)
        COMM.Barrier()
        before, full = contents(folder / name), fault()
        COMM.Barrier()
        with full.at_end:
            callbacks = full, kind(folder / name)
            error = fails(lambda c=callbacks: fit(new_model(), *c, epochs=2))
        assert isinstance(error, OSError), repr(error)
        assert_same_on_all((type(error), str(error)))
        COMM.Barrier()
        assert contents(folder / name) == before  # what was there, and nothing else


def contents(path):
    """All files of a backup, or a file with what lies hidden beside it, and their bytes."""
    paths = path.rglob("*") if path.is_dir() else [path, *path.parent.glob(".*")]
    return {each: each.read_bytes() if each.is_file() else None for each in paths}


@in_shared_folder
def check_a_loaded_model_goes_on_with_hooks_in_place(folder):
    path = folder / "m.keras"
    keras.utils.set_random_seed(RANK)
    model = new_model("adam")
    model.layers[0].rate = 0.0  # its masks would differ: Keras saves no seeds
    fit(model, ddl.ModelCheckpoint(path), epochs=2)
    COMM.Barrier()
    loaded = keras.saving.load_model(path)
    before = gradient_reducer.reduced_steps()
    fit(loaded, epochs=2)
    fit(model, epochs=2)
    assert gradient_reducer.reduced_steps() - before == (0 if SIZE == 1 else 4 * STEPS)
    assert int(loaded.optimizer.iterations.numpy()) == 4 * STEPS
    for value, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert_same_on_all([v.numpy().tobytes() for v in loaded.trainable_variables])


_WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "easyddl":
            raise ImportError("easyddl is absent")

sys.meta_path.insert(0, Absent())
import keras
import numpy as np

for path in sys.argv[1:3]:
    model = keras.saving.load_model(path)
    model.fit(np.ones((4, 6)), np.ones(4), verbose=0)
keras.saving.load_model(sys.argv[3], compile=False)
try:
    keras.saving.load_model(sys.argv[3])
except Exception as problem:
    assert "LearningRateWarmup" in str(problem), problem
else:
    raise AssertionError("loaded a schedule of easyddl's without it")
assert not [name for name in sys.modules if name.startswith("easyddl")]
"""


@in_shared_folder
def check_saved_models_load_without_easyddl(folder):
    if SIZE != 2:
        return  # once does
    keras.utils.set_random_seed(RANK)
    paths = [folder / "plain.keras", folder / "mixed.keras", folder / "schedule.keras"]
    mixed = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(ddl.scale_lr(0.1)))
    rise = keras.optimizers.SGD(ddl.LearningRateWarmup(0.1, 5), momentum=0.9)
    for path, optimizer in zip(paths, ("adam", mixed, rise), strict=True):
        fit(new_model(optimizer), ddl.ModelCheckpoint(path), epochs=1)  # saved inside of the fit
    COMM.Barrier()
    assert keras.saving.load_model(paths[2]).optimizer._learning_rate.factor == SIZE
    if RANK == 0:
        launcher = ("PMI", "HYDRA", "HYDI", "MPI", "OMPI", "PMIX", "PRTE", "_EASYDDL")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(launcher)}
        line = [sys.executable, "-c", _WITHOUT, *map(str, paths)]
        done = subprocess.run(line, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    run_checks(globals())
