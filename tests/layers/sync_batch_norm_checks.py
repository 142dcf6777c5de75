"""Batch normalization over all ranks is that of one process with all of their batches."""

import os
import pathlib
import signal
import time

import keras
import numpy as np
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails, in_shared_folder, said
from mpi import by_the_root, run_checks

import easyddl as ddl

STEPS = 4


def sizes(unequal):
    return [3 + (2 * rank if unequal else 0) for rank in range(SIZE)]


def batches(unequal, shape=(5,), offset=0.0):
    """Every rank's batches, by step and rank."""
    random = np.random.default_rng(1)
    result = []
    for _ in range(STEPS):
        xs = [
            (random.standard_normal((n, *shape)) * (rank + 1) + rank + offset).astype("float32")
            for rank, n in enumerate(sizes(unequal))
        ]
        result.append([(x, np.sin(x.reshape(len(x), -1).sum(1))) for x in xs])
    return result


def dense(layer, dtype="float32", **arguments):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.layers.Input((5,), dtype=dtype),
            layer(dtype=dtype, **arguments),
            keras.layers.Dense(4, dtype=dtype),
            layer(momentum=0.8, dtype=dtype, **arguments),
            keras.layers.Dense(1, dtype=dtype),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def convolution(layer):
    keras.utils.set_random_seed(2)
    x = keras.layers.Input((4, 4, 2))
    one = layer()(keras.layers.Conv2D(3, 3)(x))
    two = layer()(keras.layers.Conv2D(3, 3)(x))
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.Flatten()(one * two)))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def train_together(model, steps, **arguments):
    mine = [step[RANK] for step in steps]
    model.fit(
        (each for each in mine), steps_per_epoch=len(mine), shuffle=False, verbose=0,
        callbacks=both(), **arguments,
    )  # fmt: skip
    return model.get_weights()


def train_alone(model, steps):
    def train():
        for step in steps:
            model.train_on_batch(*(np.concatenate(parts) for parts in zip(*step, strict=True)))
        return model.get_weights()

    return by_the_root(train)


def assert_close(weights, expected, rtol=2e-5, atol=1e-5):
    for weight, want in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, want, rtol=rtol, atol=atol)


def check_equal_and_unequal_batches():
    for unequal, dtype in ((False, "float32"), (True, "float32"), (True, "float64")):
        if dtype == "float64" and keras.backend.backend() == "jax":
            continue  # it has 32 bits by default
        steps = batches(unequal)
        model = dense(ddl.SyncBatchNormalization, dtype)
        weights = train_together(model, steps)
        assert_close(weights, train_alone(dense(keras.layers.BatchNormalization, dtype), steps))
        assert_replicas_are_equal(model)


def check_without_it_the_moments_are_a_ranks_own():
    if SIZE > 1:
        steps = batches(True)
        weights = train_together(dense(keras.layers.BatchNormalization), steps)
        expected = train_alone(dense(keras.layers.BatchNormalization), steps)
        assert any(abs(w - e).max() > 1e-2 for w, e in zip(weights, expected, strict=True))


def check_convolutions_in_two_branches():
    steps = batches(True, (4, 4, 2))
    weights = train_together(convolution(ddl.SyncBatchNormalization), steps)
    assert_close(weights, train_alone(convolution(keras.layers.BatchNormalization), steps))


def check_one_layer_in_two_branches():
    def make(layer):
        keras.utils.set_random_seed(4)
        x = keras.layers.Input((5,))
        normalize = layer()
        # The branches take unequal time, and neither waits for the other.
        short = normalize(keras.layers.Dense(6)(x))
        long = x
        for _ in range(3):
            long = keras.layers.Dense(200, "tanh")(long)
        long = normalize(keras.layers.Dense(6)(long))
        model = keras.Model(x, keras.layers.Dense(1)(short * long))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    steps = batches(True)
    weights = train_together(make(ddl.SyncBatchNormalization), steps)
    assert_close(weights, train_alone(make(keras.layers.BatchNormalization), steps))


class Interrupted(Exception):
    """What a signal, or a callback, ends a fit by."""


class Interrupting(keras.callbacks.Callback):
    """Ends the fit of a rank after its second step, and that of rank 0, which has joined."""

    def __init__(self, pid):
        super().__init__()
        self.pid = pid

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            time.sleep(0.5)  # until rank 0 waits for the others' third step
            if RANK == 1:
                os.kill(self.pid, signal.SIGUSR1)
            raise Interrupted


def check_a_fit_after_one_that_was_interrupted():
    """What a rank was in the midst of then is nothing to the next fit."""
    if SIZE == 1:
        return
    steps = batches(True)
    model = dense(ddl.SyncBatchNormalization)
    weights = model.get_weights()

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    mine = [step[RANK] for step in steps][: 1 if RANK == 0 else STEPS]
    pid = COMM.bcast(os.getpid())
    callbacks = both(*([] if RANK == 0 else [Interrupting(pid)]))
    error = fails(
        lambda: model.fit(
            (each for each in mine),
            steps_per_epoch=len(mine),
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
    )
    assert isinstance(error, Interrupted), error
    signal.signal(signal.SIGUSR1, before)
    model.set_weights(weights)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    weights = train_together(model, steps)
    assert_close(weights, train_alone(dense(keras.layers.BatchNormalization), steps))


def check_means_far_from_zero():
    # Sums of squares would have lost all digits of the variance.
    # Keras's own moments, on other backends than TensorFlow, are made of such sums.
    steps = batches(True, offset=3000.0 if keras.backend.backend() == "tensorflow" else 30.0)
    weights = train_together(dense(ddl.SyncBatchNormalization), steps)
    expected = train_alone(dense(keras.layers.BatchNormalization), steps)
    assert_close(weights, expected, rtol=5e-3, atol=1e-3)


def check_eager_mode():
    steps = batches(True)
    model = dense(ddl.SyncBatchNormalization)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", run_eagerly=True)
    weights = train_together(model, steps)
    assert_close(weights, train_alone(dense(keras.layers.BatchNormalization), steps))


def check_masks():
    def make(layer):
        keras.utils.set_random_seed(3)
        x = keras.layers.Input((6, 2))
        z = layer()(keras.layers.Masking()(x))
        model = keras.Model(x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(z)))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    steps = batches(True, (6, 2))
    for step in steps:
        for rank, (x, _) in enumerate(step):
            x[:, 5 - rank % 4 :] = 0
    weights = train_together(make(ddl.SyncBatchNormalization), steps)
    # Keras adds 1e-7 to the number of samples.
    assert_close(weights, train_alone(make(keras.layers.BatchNormalization), steps), rtol=1e-4)


def check_ranks_without_batches():
    # Rank r has r + 1 batches: the moments of a step are those of the ranks that have one.
    steps = batches(True)
    count = min(RANK + 1, STEPS)
    model = dense(ddl.SyncBatchNormalization)
    model.fit(
        (step[RANK] for step in steps[:count]), steps_per_epoch=count, shuffle=False, verbose=0,
        callbacks=both(),
    )  # fmt: skip
    present = [
        [each for rank, each in enumerate(step) if min(rank + 1, STEPS) > i]
        for i, step in enumerate(steps)
    ]
    expected = train_alone(
        dense(keras.layers.BatchNormalization), [step for step in present if step]
    )
    assert_close(model.get_weights(), expected)
    assert_replicas_are_equal(model)


def check_many_layers():
    keras.utils.set_random_seed(5)
    layers = [ddl.SyncBatchNormalization() for _ in range(33)]
    model = keras.Sequential([keras.layers.Input((5,)), *layers, keras.layers.Dense(1)])
    # XLA takes a minute to compile as many.
    model.compile("sgd", "mse", run_eagerly=keras.backend.backend() == "jax")
    train_together(model, batches(True))
    assert_replicas_are_equal(model)


def check_conversion():
    inner = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.BatchNormalization(name="inside")]
    )
    x = keras.layers.Input((5,))
    z = keras.layers.BatchNormalization(epsilon=0.5, scale=False, name="first")(x)
    z = inner(keras.layers.Dense(4)(z))
    frozen = keras.layers.BatchNormalization(name="frozen")
    frozen.trainable = False
    model = keras.Model(x, frozen(z))
    copy = ddl.sync_batch_norm(model)
    found = {layer.name: layer for layer in copy._flatten_layers()}
    for name in ("first", "inside", "frozen"):
        assert type(found[name]) is ddl.SyncBatchNormalization, name
    assert found["first"].epsilon == 0.5 and not found["first"].scale
    assert not found["frozen"].trainable and found["inside"].trainable
    x = np.random.default_rng(4).standard_normal((7, 5)).astype("float32")
    np.testing.assert_allclose(copy.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)

    inside = keras.layers.TimeDistributed(keras.layers.BatchNormalization(name="kept"))
    text = said(lambda: ddl.sync_batch_norm(keras.Sequential([keras.Input((3, 4)), inside])))
    assert ("kept" in text) == (RANK == 0 and SIZE > 1), text

    class Own(keras.Model):
        pass

    for wrong in (Own(), "model", None):
        assert isinstance(fails(lambda w=wrong: ddl.sync_batch_norm(w)), TypeError)
    error = fails(lambda: ddl.SyncBatchNormalization(synchronized=True))
    assert isinstance(error, ValueError) and "synchronized" in str(error)


def check_saving():
    @in_shared_folder
    def check(folder):
        path = str(folder / f"{RANK}.keras")
        model = dense(ddl.SyncBatchNormalization)
        train_together(model, batches(True))
        model.save(path)
        again = keras.models.load_model(path)
        assert type(again.layers[0]) is ddl.SyncBatchNormalization
        assert_close(again.get_weights(), model.get_weights(), rtol=0)
        steps = batches(False)
        train_together(again, steps)
        train_together(model, steps)
        assert_close(again.get_weights(), model.get_weights(), rtol=1e-6)
        assert pathlib.Path(path).exists()

    check()


def check_inference_waits_for_nobody():
    model = dense(ddl.SyncBatchNormalization)
    train_together(model, batches(True))
    if RANK == SIZE - 1:
        model.predict(batches(True)[0][RANK][0], verbose=0)
        model.evaluate(*batches(True)[0][RANK], verbose=0)
    COMM.Barrier()


# The last one: the names of what is made later differ too.
def check_layers_whose_names_differ_by_rank():
    steps = batches(True, (4, 4, 2))
    if RANK == 0:
        convolution(ddl.SyncBatchNormalization)  # which moves Keras's counter of names on
    weights = train_together(convolution(ddl.SyncBatchNormalization), steps)
    assert_close(weights, train_alone(convolution(keras.layers.BatchNormalization), steps))


if __name__ == "__main__":
    run_checks(globals())
