"""Counts of data that all ranks evaluate, and entries of the logs that ranks compute themselves."""

import contextlib
import io
import warnings

import keras
import numpy as np
from fits import COMM, RANK, SIZE, Spy, both
from mpi import run_checks

import easyddl as ddl
from easyddl.data import split_calls
from easyddl.runtime import notices

BACKEND = keras.backend.backend()
SAMPLES = 12 * SIZE


def new_model(kind=keras.Sequential):
    keras.utils.set_random_seed(5)
    model = kind([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    counts = [keras.metrics.TruePositives(name="tp"), keras.metrics.FalseNegatives(name="fn")]
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=counts)
    return model


def data(seed=0):
    x = np.random.default_rng(seed).standard_normal((SAMPLES, 4)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


@contextlib.contextmanager
def printed():
    """Yields a list that then holds what the root has printed."""
    notices._told.clear()
    text, found = io.StringIO(), []
    with contextlib.redirect_stderr(text):
        yield found
    found.append(COMM.bcast(text.getvalue()))


def counted(model, x, y):
    """True positives and false negatives, by NumPy."""
    weight, bias = model.get_weights()
    positive = 1 / (1 + np.exp(-(x @ weight + bias))) > 0.5
    return float((positive & (y > 0)).sum()), float((~positive & (y > 0)).sum())


def check_counts_of_arrays_that_all_ranks_validate_on():
    x, y = data(seed=1)
    model = new_model()
    mine = ddl.split_data(*data())
    with printed() as text:
        history = model.fit(
            *mine, epochs=2, verbose=0, validation_data=(x, y), callbacks=both()
        ).history
        logs = model.evaluate(x, y, verbose=0, return_dict=True, callbacks=[ddl.DDLCallback()])
    assert "count" not in text[0], text
    wanted = counted(model, x, y)
    assert (history["val_tp"][-1], history["val_fn"][-1]) == wanted, (history, wanted)
    assert (logs["tp"], logs["fn"]) == wanted, (logs, wanted)


def check_counts_of_arrays_that_are_equal_up_to_rounding():
    """Also with a NaN, which does not equal itself."""

    class WithoutNan(keras.Sequential):
        def call(self, x, **arguments):
            return super().call(keras.ops.nan_to_num(x), **arguments)

    x, y = data(seed=1)
    model = new_model(WithoutNan)
    x[3, 1] = np.nan
    mine = (x * np.float32(1 + 1e-6 * RANK), y)
    with printed() as text:
        logs = model.evaluate(*mine, verbose=0, return_dict=True, callbacks=[ddl.DDLCallback()])
    assert "count" not in text[0], text
    assert (logs["tp"], logs["fn"]) == counted(model, np.nan_to_num(x), y), logs


def check_counts_of_arrays_that_differ_are_added_with_a_warning():
    """As of data that each rank has normalised by the mean of its own shard."""
    x, y = data(seed=1)
    model = new_model()
    split_calls._lengths.clear()  # a shard of an earlier check may have the length of x
    ddl.split_data(*data())
    for validation in (None, "split"):
        with printed() as text:
            logs = model.evaluate(
                x + np.float32(0.01 * RANK),
                y,
                verbose=0,
                return_dict=True,
                callbacks=[ddl.DDLCallback(validation=validation)],
            )
        parts = [counted(model, x + 0.01 * rank, y) for rank in range(SIZE)]
        assert [logs["tp"], logs["fn"]] == np.sum(parts, axis=0).tolist(), (logs, parts)
        warns = validation is None and SIZE > 1
        assert ('pass DDLCallback(validation="same")' in text[0]) == warns, text


def check_validations_that_differ_are_an_error():
    if SIZE == 1:
        return
    x, y = data(seed=1)
    callbacks = both(validation="same" if RANK == 0 else None)
    try:
        new_model().fit(
            *ddl.split_data(*data()), verbose=0, validation_data=(x, y), callbacks=callbacks
        )
    except ValueError as error:
        assert "same `validation` to DDLCallback" in str(error), error
    else:
        raise AssertionError("no error")
    assert ddl.allreduce(1, "sum") == SIZE


def check_a_count_of_ones_own():
    """One that is declared to add up, in a model without counts of Keras's."""

    @ddl.register_metric(merge={"mass": "sum"})
    class Mass(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="mass")
            self.mass = self.add_weight(name="mass", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.mass.assign_add(keras.ops.sum(keras.ops.cast(y_true, "float32")))

        def result(self):
            return self.mass + 0.0

    x, y = data(seed=1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Mass()])
    for mine in ((x, y), ddl.split_data(x, y)):
        logs = model.evaluate(*mine, verbose=0, return_dict=True, callbacks=[ddl.DDLCallback()])
        assert logs["mass"] == y.sum(), (logs, y.sum())


def check_counts_of_shards_are_added():
    x, y = data(seed=1)
    model = new_model()
    shard = ddl.split_data(x, y)
    copies = [each.copy() for each in shard]  # no longer what split_data has returned
    for mine in (shard, copies):
        logs = model.evaluate(*mine, verbose=0, return_dict=True, callbacks=[ddl.DDLCallback()])
        assert (logs["tp"], logs["fn"]) == counted(model, x, y), logs


def check_counts_of_datasets():
    """Their contents are not compared: the script says which they are."""
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    x, y = data(seed=1)
    model = new_model()
    wanted = np.array(counted(model, x, y))
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    cases = {
        None: (whole.batch(5), SIZE, SIZE > 1),
        "same": (whole.batch(5), 1, False),
        "split": (ddl.split_data(whole).batch(5), 1, False),
    }
    for validation, (dataset, times, warns) in cases.items():
        with printed() as text:
            logs = model.evaluate(
                dataset,
                verbose=0,
                return_dict=True,
                callbacks=[ddl.DDLCallback(validation=validation)],
            )
        assert [logs["tp"], logs["fn"]] == (times * wanted).tolist(), (validation, logs, wanted)
        assert ('pass DDLCallback(validation="same")' in text[0]) == warns, text
    with printed() as text:  # it is known to be split
        model.evaluate(ddl.split_data(whole).batch(5), verbose=0, callbacks=[ddl.DDLCallback()])
    assert "count" not in text[0], text


def check_counts_where_one_rank_alone_validates():
    x, y = data(seed=1)
    model = new_model()
    arguments = {"validation_data": (x, y)} if RANK == SIZE - 1 else {}
    for validation in (None, "same"):
        history = model.fit(
            *ddl.split_data(*data()),
            verbose=0,
            callbacks=both(validation=validation),
            **arguments,
        ).history
        assert (history["val_tp"][-1], history["val_fn"][-1]) == counted(model, x, y), history


def check_bad_arguments():
    try:
        ddl.DDLCallback(validation="both")
    except ValueError as error:
        assert "`validation` must be one of" in str(error) and "'both'" in str(error), error
    else:
        raise AssertionError("no error")


class OwnEvaluate(keras.Sequential):
    """Adds an entry that each rank computes from its own data."""

    def evaluate(self, *args, **kwargs):
        logs = super().evaluate(*args, **kwargs)
        logs["spread"] = float(RANK + 1)
        if RANK == 0:
            logs["root"] = 7.0
        return logs


class WholeOwnEvaluate(keras.Sequential):
    """Does not call Keras's method."""

    def evaluate(self, *args, **kwargs):
        return {"loss": float(10 + RANK)}


def check_entries_of_ones_own_evaluate():
    for kind, wanted in {
        OwnEvaluate: {"val_spread": (SIZE + 1) / 2, "val_root": 7.0},
        WholeOwnEvaluate: {"val_loss": 10 + (SIZE - 1) / 2},
    }.items():
        spy = Spy()
        stop = keras.callbacks.EarlyStopping(next(iter(wanted)), patience=0, mode="min")
        with printed() as text:
            history = (
                new_model(kind)
                .fit(
                    *ddl.split_data(*data()),
                    epochs=3,
                    verbose=0,
                    validation_data=data(seed=1),
                    callbacks=both(spy, stop),
                )
                .history
            )
        for key, value in wanted.items():
            assert history[key] == [value] * 2 == [each[key] for each in spy.seen], history
            assert text[0].count(f"{key!r} of the epoch's logs is no result") == (SIZE > 1), text
        only = "the mean of their values. Only rank 0 computed it."
        assert text[0].count(only) == (SIZE > 1 and "val_root" in wanted), text
        assert len(set(COMM.allgather(repr(history)))) == 1
        assert "differs" not in text[0] and "models differ" not in text[0], text


class Own(keras.callbacks.Callback):
    """Adds entries that differ, of which one exists on the last rank only."""

    def on_epoch_end(self, epoch, logs=None):
        logs["own"] = float(RANK)
        logs["same"] = np.float32(3)
        logs["nan"] = float("nan")
        logs["text"] = f"rank {RANK}"
        logs["unread"] = float(RANK)
        if RANK == SIZE - 1:
            logs["rare"] = 1.0


def check_entries_by_which_callbacks_decide():
    monitors = [
        keras.callbacks.ReduceLROnPlateau(name, mode="min", patience=9)
        for name in ("own", "same", "nan", "rare")
    ]
    with printed() as text, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's own, where an entry is missing
        history = (
            new_model()
            .fit(*ddl.split_data(*data()), epochs=2, verbose=0, callbacks=both(Own(), *monitors))
            .history
        )
    assert history["own"] == [float(RANK)] * 2
    told = {
        "'own' of the logs of epoch 1 differs between the ranks": "0.0 on rank 0; 1.0 on rank 1",
        "'rare' of the logs of epoch 1 exists on some ranks only": f"; 1.0 on rank {SIZE - 1}",
    }
    for what, shown in told.items():
        assert text[0].count(what) == (SIZE > 1) and (shown in text[0]) == (SIZE > 1), text
    assert text[0].count("warning") == 2 * (SIZE > 1), text


if __name__ == "__main__":
    run_checks(globals())
