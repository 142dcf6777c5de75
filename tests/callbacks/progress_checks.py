"""What `ProgressCallback` shows, on every rank of one job."""

import contextlib
import gc
import io
import re
import sys
import time
import types

import keras
import numpy as np
import tensorflow as tf
import tqdm
from fits import fails
from keras import ops
from mpi import run_checks
from mpi4py import MPI
from steps import TAKES_SEVERAL_STEPS, gradients_of, stateful

import easyddl as ddl
from easyddl.training.fit import fit_context

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
BATCH = 8
LINE = re.compile(r"easyddl: epoch (\d+)/(\d+): (\S+) samples/s(?:, slowest rank (\d+): (\S+)x the mean)?, (.*)")  # fmt: skip # noqa: E501


def data(steps=4, last=BATCH):
    """Data of this rank alone, whose last batch may be smaller."""
    random = np.random.default_rng(RANK)
    x = random.standard_normal((BATCH * (steps - 1) + last, 6)).astype("float32")
    return x, x.sum(1)


def new_model(*layers, rate=0.01, **arguments):
    model = keras.Sequential([keras.layers.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse", **arguments)
    return model


def fit(model, *args, mine=(), **arguments):
    """A fit with the bar: its history, and what it printed to standard output and error."""
    out, error = io.StringIO(), io.StringIO()
    callbacks = [ddl.DDLCallback(), ddl.ProgressCallback(), *mine]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        history = model.fit(
            *args, shuffle=False, callbacks=[*callbacks, ddl.DDLGlobalVariablesCallback()],
            **{"batch_size": None if len(args) == 1 else BATCH, **arguments},
        ).history  # fmt: skip
    return history, out.getvalue(), error.getvalue()


def lines(text):
    """The epochs' lines: number, of how many, rate, slowest rank, its share, and the rest."""
    found = [LINE.fullmatch(line).groups() for line in text.splitlines()]
    return [
        (int(epoch), int(epochs), float(rate.replace(",", "")), slowest and int(slowest),
         share and float(share), rest)
        for epoch, epochs, rate, slowest, share, rest in found
    ]  # fmt: skip


class Watch(keras.callbacks.Callback):
    """Measures epochs by itself, and makes steps long enough to be measured."""

    def __init__(self, pause=0.01, slow=range(SIZE)):
        super().__init__()
        self.pause = pause * (RANK in slow)
        self.seconds, self.counted = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.pause)

    def on_train_batch_end(self, batch, logs=None):
        self.end = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(self.end - self.begin)
        self.counted.append(fit_context.current(self.model).meter.samples)


def check_a_line_for_each_epoch_on_the_root():
    keras.utils.set_random_seed(0)
    watch = Watch()
    x, y = data(last=BATCH - RANK)
    history, out, error = fit(new_model(metrics=["mae"]), x, y, mine=[watch], epochs=3)
    assert out == "", out
    samples = sum(COMM.allgather(len(x)))
    assert watch.counted == [len(x), 2 * len(x), 3 * len(x)]
    slowest = np.max(COMM.allgather(watch.seconds), axis=0)
    if RANK != 0:
        assert error == "", error
        return
    found = lines(error)
    assert [line[:2] for line in found] == [(1, 3), (2, 3), (3, 3)]
    for epoch, (_, _, rate, who, share, rest) in enumerate(found):
        assert_about(rate, samples / slowest[epoch])
        loss, mae = (f"{history[name][epoch]:.4g}" for name in ("loss", "mae"))
        assert rest == f"loss={loss}, mae={mae}"
        if SIZE == 1:
            assert who is None
        else:
            assert 0 <= who < SIZE and 1 <= share <= SIZE


def check_samples_are_counted_whatever_the_step():
    class Mine(keras.Sequential):
        @stateful
        def train_step(self, data):
            x, y = data
            weights = self.trainable_weights
            loss, found = gradients_of(lambda: ops.mean((self(x) - y[:, None]) ** 2), weights)
            self.optimizer.apply(found, weights)
            return {"loss": loss}

    mine = Mine([keras.layers.Input((6,)), keras.layers.Dense(1)])
    mine.compile("sgd")
    x, y = data(last=3)
    several = {"steps_per_execution": 2} if TAKES_SEVERAL_STEPS else {}
    for model in (mine, new_model(run_eagerly=True), new_model(**several)):
        watch = Watch()
        fit(model, x, y, mine=[watch], epochs=2)
        assert watch.counted == [len(x), 2 * len(x)], watch.counted
    watch = Watch()
    dataset = tf.data.Dataset.from_tensor_slices(({"a": x}, y)).batch(BATCH)
    named = keras.Input((6,), name="a")
    model = keras.Model({"a": named}, keras.layers.Dense(1)(named))
    model.compile("sgd", "mse")
    fit(model, dataset, mine=[watch])
    assert watch.counted == [len(x)]


def batches(pause, steps=20):
    """A data set whose batches take a while to come."""
    x, y = data(steps)

    def make():
        for begin in range(0, len(x), BATCH):
            time.sleep(pause)
            yield x[begin : begin + BATCH], y[begin : begin + BATCH]

    specs = tf.TensorSpec((None, 6)), tf.TensorSpec((None,))
    dataset = tf.data.Dataset.from_generator(make, output_signature=specs)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps))


def assert_about(found, expected):
    """Within a factor of two: the host may have other work at any moment."""
    assert expected / 2 < found < expected * 2, (found, expected)


def slowest_of(error):
    """The slowest rank and its share, of each epoch, on all ranks."""
    return COMM.bcast([line[3:5] for line in lines(error)] if RANK == 0 else None)


def check_the_slowest_rank_waits_for_data():
    slow = SIZE - 1
    _, _, error = fit(new_model(), batches(0.2 * (slow == RANK), steps=10), epochs=2)
    for found, share in slowest_of(error):
        if SIZE > 1:
            assert found == slow and share > 1.15, (found, share)


def check_the_slowest_rank_runs_a_callback_and_accumulates():
    for arguments in ({"gradient_accumulation_steps": 2}, {}):
        model = new_model()
        optimizer = keras.optimizers.SGD(0.01, **arguments)
        if not arguments:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "mse", steps_per_execution=1 + TAKES_SEVERAL_STEPS)
        _, _, error = fit(model, *data(20), mine=[Watch(0.2, slow=[SIZE - 1])], epochs=2)
        for found, share in slowest_of(error):
            if SIZE > 1:
                assert found == SIZE - 1 and share > 1.15, (found, share)


def check_validation_is_not_in_it():
    class Slow(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            time.sleep(2)

    watch = Watch(0.05)
    validation = data(1) if RANK == 0 else None
    _, _, error = fit(
        new_model(), *data(10), mine=[Slow(), watch], epochs=2, validation_data=validation
    )
    if RANK == 0:
        for seconds, (_, _, rate, _, _, rest) in zip(watch.seconds, lines(error), strict=True):
            assert_about(rate, SIZE * 10 * BATCH / seconds)
            assert "val_loss=" in rest


def check_one_epoch_of_one_step():
    _, _, error = fit(new_model(), *data(1))
    if RANK == 0:
        (line,) = lines(error)
        assert line[3] is None and line[2] > 0  # the only step compiled: it tells nothing


@contextlib.contextmanager
def in_a_notebook(made):
    """Gives `tqdm.auto` what it has in a notebook."""

    class Widget(tqdm.tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    Widget.__module__ = "tqdm.notebook"
    module = types.ModuleType("tqdm.auto")
    module.tqdm = type("tqdm", (Widget,), {"__module__": "tqdm.auto"})
    before = sys.modules.get("tqdm.auto")
    sys.modules["tqdm.auto"] = module
    try:
        yield
    finally:
        sys.modules.pop("tqdm.auto")
        if before is not None:
            sys.modules["tqdm.auto"] = before


def check_a_bar_in_a_notebook():
    made = []
    with in_a_notebook(made):
        history, out, error = fit(new_model(), *data(12), mine=[Watch(0.03)], epochs=2, verbose=2)
    assert out == ""
    if RANK != 0:
        assert made == [] and error == ""
        return
    first, second = made
    assert (first.desc, second.desc) == ("epoch 1/2", "epoch 2/2")
    assert [(bar.n, bar.total, bar.disable) for bar in made] == [(12, 12, True)] * 2  # closed
    assert "easyddl:" not in error
    shown = error.replace("\r", "\n").splitlines()
    own = [line for line in shown if " 12/12 " not in line and "samples/s" in line]
    assert len(own) > 2, shown  # it moves within an epoch
    rates = [float(re.search(r"([\d,.]+) samples/s", line)[1].replace(",", "")) for line in own]
    assert max(rates) < SIZE * BATCH / 0.03 and max(rates) > SIZE * BATCH / 0.3, rates
    assert f"loss={history['loss'][1]:.4g}" in shown[-1], shown[-1]


def check_a_fit_that_raises_leaves_no_bar_open():
    class Crash(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("caught by the user")

    made, model = [], new_model()
    with in_a_notebook(made), contextlib.suppress(KeyError):
        fit(model, *data(), mine=[Crash()])
    assert [bar.disable for bar in made] == [True] * (RANK == 0)
    assert "train_step" not in vars(model) and model.train_function is None


def check_keras_shows_its_own_without_it():
    out, model = io.StringIO(), new_model()
    logger = keras.callbacks.ProgbarLogger()
    callback = ddl.ProgressCallback()
    every = [ddl.DDLCallback(), logger, callback, ddl.DDLGlobalVariablesCallback()]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        model.fit(*data(), verbose=2, callbacks=every)
        assert out.getvalue() == "", out.getvalue()
        model.evaluate(*data(), verbose=2, callbacks=[callback])
        assert "loss" in out.getvalue()
        out.truncate(0)
        model.fit(*data(), verbose=2, callbacks=[ddl.DDLCallback(), logger])
    assert ("loss" in out.getvalue()) == (RANK == 0)
    assert "train_step" not in vars(model)


def check_a_class_in_place_of_an_instance():
    callbacks = [ddl.DDLCallback(), ddl.ProgressCallback]
    error = fails(lambda: new_model().fit(*data(), verbose=0, callbacks=callbacks))
    assert isinstance(error, TypeError) and "ddl.ProgressCallback()" in str(error), error


def check_on_some_ranks_only():
    if SIZE == 1:
        return
    for mine in ([ddl.ProgressCallback()] * (RANK == 1), [ddl.RankZero(ddl.ProgressCallback())]):
        callbacks = [ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()]
        error = fails(lambda c=callbacks: new_model().fit(*data(), verbose=0, callbacks=c))
        assert isinstance(error, RuntimeError), error
        assert "ddl.ProgressCallback(), which all ranks must pass, or none" in str(error), error


if __name__ == "__main__":
    gc.disable()  # it looks through TensorFlow's million objects, on one rank while others wait
    run_checks(globals())
