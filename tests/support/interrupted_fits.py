"""Fits that are interrupted and go on, compared with fits that are not."""

import random

import keras
import numpy as np
from fits import COMM, RANK, fails

import easyddl as ddl

BATCH, STEPS, EPOCHS = 4, 5, 4


def data(steps=STEPS):
    """Data of this rank alone. Its last batch is smaller than the others."""
    numbers = np.random.default_rng(RANK)
    x = numbers.standard_normal((BATCH * steps - 1 - RANK % 2, 6)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")


def fit(model, *callbacks, epochs=EPOCHS, steps=STEPS, **arguments):
    x, y = data(steps)
    arguments = {"shuffle": False, **arguments}
    return model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=[ddl.DDLCallback(), *callbacks, ddl.DDLGlobalVariablesCallback()],
        **arguments,
    )


class Interrupt(keras.callbacks.Callback):
    """Ends a fit as a fault does, which all ranks survive."""

    def __init__(self, epoch, batch=1):
        super().__init__()
        self.at = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise KeyError("interrupted")


class Draws(keras.callbacks.Callback):
    """Draws Python's and NumPy's random numbers, as a data pipeline does."""

    def __init__(self):
        super().__init__()
        self.drawn = {}

    def on_epoch_begin(self, epoch, logs=None):
        seed = keras.ops.convert_to_numpy(keras.random.uniform((2,))).tolist()
        self.drawn[epoch] = random.random(), np.random.random(), seed


def state_of(model):
    seeds = [layer.seed_generator.state for layer in model.layers if hasattr(layer, "rate")]
    of_optimizer = model.optimizer.variables if model.optimizer else []
    variables = [*model.weights, *of_optimizer, *seeds]
    return [np.asarray(variable.numpy()) for variable in variables]


def assert_same_bits(model, other):
    for value, expected in zip(state_of(model), state_of(other), strict=True):
        assert value.tobytes() == expected.tobytes(), (value, expected)


def assert_same_on_all(thing):
    everyone = COMM.allgather(thing)
    assert all(theirs == everyone[0] for theirs in everyone), everyone


def assert_interrupted_alike(
    folder, make, at, epochs_left, extra=lambda: [], steps=STEPS, **arguments
):
    """A training that is interrupted ends as one that is not: the weights and the metrics."""

    def train(name, seed, *callbacks):
        keras.utils.clear_session()  # Keras's own seed, which older versions keep
        keras.utils.set_random_seed(seed + RANK)
        model, draws = make(), Draws()
        backup = ddl.BackupAndRestore(folder / name, **arguments)
        callbacks = [*extra(), backup, draws, *callbacks]
        history = fit(model, *callbacks, steps=steps, shuffle=True)
        return model, history, draws.drawn

    whole, history, drawn = train("whole", 3)
    assert isinstance(fails(lambda: train("parts", 3, Interrupt(*at))), KeyError)
    again, rest, drawn_again = train("parts", 70)  # a new process begins with other numbers
    assert rest.epoch == epochs_left, rest.epoch
    assert_same_bits(again, whole)
    for name, values in history.history.items():
        assert rest.history[name] == values[-len(epochs_left) :], name
    assert_same_on_all([v.numpy().tobytes() for v in again.trainable_variables])
    if arguments.get("save_freq", "epoch") == "epoch":
        assert {epoch: drawn[epoch] for epoch in epochs_left} == drawn_again
    assert list(folder.iterdir()) == []  # both have come to their end
