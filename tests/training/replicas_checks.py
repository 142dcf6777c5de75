"""Differences between the ranks' models are found, and named."""

import re

import keras
from fits import COMM, RANK, SIZE, both, fails
from mpi import run_checks
from uneven_batches import batches_of, fit, new_model

import easyddl as ddl


class Spoil(keras.callbacks.Callback):
    """Changes one number by a little on one rank, before one step."""

    def __init__(self, variable_of, step=2):
        super().__init__()
        self.variable_of, self.step = variable_of, step

    def on_train_batch_begin(self, batch, logs=None):
        if RANK == SIZE - 1 and batch == self.step:
            variable = self.variable_of(self.model)
            value = variable.numpy()
            value.reshape(-1)[-1] *= 1.0001
            variable.assign(value)


def train(*callbacks, **arguments):
    parts = batches_of(6 * SIZE)
    model = new_model()
    model.fit(
        (each for each in parts[RANK]), steps_per_epoch=6, shuffle=False, verbose=0,
        callbacks=both(*callbacks, **arguments),
    )  # fmt: skip
    return model


def train_on(model, mine):
    model.fit(
        (each for each in mine), steps_per_epoch=len(mine), shuffle=False, verbose=0,
        callbacks=both(check_replicas=1),
    )  # fmt: skip


def check_a_weight_that_differs():
    spoil = Spoil(lambda model: model.layers[0].kernel)
    train(spoil)  # nobody looks
    if SIZE == 1:
        train(spoil, check_replicas=2)
        return
    error = fails(lambda: train(spoil, check_replicas=2))
    assert isinstance(error, RuntimeError)
    text = str(error)
    assert "after step 4 of epoch 1" in text, text
    assert f"kernel on rank {SIZE - 1} is not rank 0's" in text, text
    assert len(set(COMM.allgather(text))) == 1
    # Of one number the difference is 1e-4, and at most that of the largest.
    size = float(re.search(r"by up to (\S+) of its largest value", text)[1])
    assert 1e-7 < size < 2e-4 and "If they differ by rounding only" in text, text


def check_an_optimizer_that_differs():
    spoil = Spoil(lambda model: model.optimizer.momentums[-1])
    error = fails(lambda: train(spoil, check_replicas=3)) if SIZE > 1 else "momentum"
    assert "momentum" in str(error), error


def check_equal_models_pass():
    train(check_replicas=1)
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, use_ema=True)
    model = new_model(optimizer, layers)
    mine = batches_of(5 * SIZE + 1)[RANK]
    train_on(model, mine)


def check_ranks_that_have_joined_are_not_waited_for():
    parts = batches_of(5 * SIZE)
    fit(new_model(), parts[RANK] if RANK == 0 else parts[RANK][:2], epochs=2)
    model = new_model()
    mine = parts[RANK] if RANK == 0 else parts[RANK][:2]
    train_on(model, mine)


def check_bad_intervals():
    for wrong in (0, -1, 1.5, True, "2"):
        error = fails(lambda w=wrong: ddl.DDLCallback(check_replicas=w))
        assert isinstance(error, ValueError) and "check_replicas" in str(error)


if __name__ == "__main__":
    run_checks(globals())
