"""Plain learning rates that callbacks set, by epoch and by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from easyddl.callbacks.learning_rates import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from easyddl.optimizers.warmup import LearningRateWarmup
from easyddl.runtime import notices, world
from easyddl.training.step import momentum_correction

STEPS, BATCH = 5, 4  # of an epoch


@pytest.fixture(autouse=True)
def four_ranks(monkeypatch):
    monkeypatch.setattr(world, "size", lambda: 4)


class Rates(keras.callbacks.Callback):
    """The rate that each step has taken."""

    def on_train_begin(self, logs=None):
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(float(self.model.optimizer.learning_rate))


def fitted(callbacks, epochs, optimizer=None, **arguments):
    """A model after a fit, its history, and the rates of its steps."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer or keras.optimizers.SGD(0.5), "mse")
    x = np.random.default_rng(0).standard_normal((STEPS * BATCH, 3)).astype("float32")
    rates = Rates()
    history = model.fit(
        x, x[:, :2], batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0,
        callbacks=[*callbacks, rates], **arguments,
    )  # fmt: skip
    return model, history.history, np.array(rates.found)


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4), ("sqrt", 2)])
def test_warmup_rises_at_every_step(rule, factor):
    warmup = LearningRateWarmupCallback(0.1, warmup_epochs=2, rule=rule)
    _, history, found = fitted([warmup], 4)
    expected = np.interp(np.arange(4 * STEPS), [0, 2 * STEPS], [0.1, 0.1 * factor])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(history["learning_rate"], expected[STEPS - 1 :: STEPS], rtol=1e-6)


@pytest.mark.parametrize("epochs", [0, 0.3, 1.95])
def test_warmup_ends_between_two_steps(epochs):
    _, _, found = fitted([LearningRateWarmupCallback(0.1, warmup_epochs=epochs)], 3)
    steps = np.arange(3 * STEPS)
    part = np.minimum(1, steps / (epochs * STEPS)) if epochs else 1 + 0 * steps
    np.testing.assert_allclose(found, 0.1 * (1 + 3 * part), rtol=1e-6)


def test_after_warmup_the_rate_is_others_to_change():
    lower = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2 if epoch == 2 else lr)
    _, _, found = fitted([LearningRateWarmupCallback(0.1, warmup_epochs=1), lower], 4)
    np.testing.assert_allclose(found[STEPS : 2 * STEPS], 0.4, rtol=1e-6)
    np.testing.assert_allclose(found[2 * STEPS :], 0.2, rtol=1e-6)


def test_a_schedule_begins_in_the_epoch_after_the_warmup():
    warmup = LearningRateWarmupCallback(0.1, warmup_epochs=1)
    _, _, found = fitted([warmup, LearningRateScheduleCallback(0.4, 0.5, start_epoch=1)], 3)
    np.testing.assert_allclose(found[STEPS - 1 :], [0.34] + 2 * STEPS * [0.2], rtol=1e-6)


@pytest.mark.full
def test_training_that_goes_on():
    warmup = LearningRateWarmupCallback(0.1, warmup_epochs=2)
    _, _, found = fitted([warmup], 4, initial_epoch=1)
    expected = np.interp(np.arange(STEPS, 4 * STEPS), [0, 2 * STEPS], [0.1, 0.4])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    _, _, found = fitted([warmup], 5, initial_epoch=3)
    np.testing.assert_allclose(found, 0.5)


def test_schedules_that_follow_one_another_do_not_compound():
    callbacks = [
        LearningRateScheduleCallback(0.8, 0.5, end_epoch=2),
        LearningRateScheduleCallback(0.8, lambda epoch: 10.0**-epoch, start_epoch=2, end_epoch=4),
        LearningRateScheduleCallback(0.8, 0.1, start_epoch=5),
    ]
    _, _, found = fitted(callbacks, 7)
    expected = np.repeat([0.4, 0.4, 0.008, 0.0008, 0.0008, 0.08, 0.08], STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_multiplier_by_step():
    schedule = LearningRateScheduleCallback(
        0.8, lambda epoch: 1 / (1 + epoch), start_epoch=1, end_epoch=2, staircase=False
    )
    _, _, found = fitted([schedule], 3)
    position = np.arange(3 * STEPS) / STEPS
    expected = np.where(position < 1, 0.5, 0.8 / (1 + np.minimum(position, 2 - 1 / STEPS)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.full
def test_the_velocity_rises_with_the_rate():
    def weights(optimizer, *callbacks):
        unhook = momentum_correction.hook(optimizer)
        model, _, _ = fitted(callbacks, 3, optimizer)
        unhook()
        return model.get_weights()

    plain = weights(
        keras.optimizers.SGD(0.1, momentum=0.9), LearningRateWarmupCallback(0.1, warmup_epochs=2)
    )
    schedule = LearningRateWarmup(0.1, 2 * STEPS, size=4)
    by_schedule = weights(keras.optimizers.SGD(schedule, momentum=0.9))
    for one, other in zip(plain, by_schedule, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    uncorrected = weights(
        keras.optimizers.SGD(0.1, momentum=0.9),
        LearningRateWarmupCallback(0.1, warmup_epochs=2, correct_momentum=False),
    )
    assert np.abs(uncorrected[0] - plain[0]).max() > 0.01 * np.abs(plain[0]).max()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # how Keras finds its length
def test_data_of_unknown_length():
    def batches():
        while True:
            yield np.ones((BATCH, 3), "float32"), np.ones((BATCH, 2), "float32")

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    data = iter(batches())
    unknown = tf.data.Dataset.from_generator(
        lambda: (next(data) for _ in range(STEPS)),
        output_signature=(tf.TensorSpec((BATCH, 3)), tf.TensorSpec((BATCH, 2))),
    )
    with pytest.raises(ValueError, match="Pass `steps_per_epoch`"):
        model.fit(unknown, shuffle=False, verbose=0, callbacks=[LearningRateWarmupCallback(0.1)])
    rates = Rates()
    warmup = LearningRateWarmupCallback(0.1, warmup_epochs=1, steps_per_epoch=STEPS)
    model.fit(unknown, shuffle=False, verbose=0, callbacks=[warmup, rates])
    expected = np.interp(np.arange(STEPS), [0, STEPS], [0.1, 0.4])
    np.testing.assert_allclose(rates.found, expected, rtol=1e-6)


def test_an_optimizer_with_a_schedule():
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5))
    with pytest.raises(TypeError, match="sets the optimizer's learning rate, which must be a num"):
        fitted([LearningRateWarmupCallback(0.1)], 1, optimizer)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"initial_lr": -1, "multiplier": 1}, "initial_lr=-1"),
        ({"initial_lr": 0.1, "multiplier": "x"}, "multiplier='x'"),
        ({"initial_lr": 0.1, "multiplier": 1, "start_epoch": -1}, "start_epoch=-1"),
        ({"initial_lr": 0.1, "multiplier": 1, "end_epoch": "x"}, "end_epoch='x'"),
    ],
)
def test_wrong_numbers(arguments, error):
    with pytest.raises(ValueError, match=error):
        LearningRateScheduleCallback(**arguments)
    with pytest.raises(ValueError, match="warmup_epochs=-1"):
        LearningRateWarmupCallback(0.1, warmup_epochs=-1)


SCALED = 4 * 0.1


@pytest.mark.parametrize(
    ("rate", "callbacks", "factor"),
    [
        # A translated script that trains at the rate of one rank.
        (SCALED, [LearningRateScheduleCallback(0.1, 1.0)], 4),
        (2 * 0.1, [LearningRateScheduleCallback(0.1, 1.0)], 2),
        (0.1, [LearningRateScheduleCallback(SCALED, 1.0, start_epoch=1)], 4),
        (0.1, [LearningRateWarmupCallback, LearningRateScheduleCallback(0.1, 1.0, 1)], 4),
        (0.025, [LearningRateWarmupCallback], 4),
        # These are right.
        (SCALED, [LearningRateScheduleCallback(SCALED, 1.0)], None),
        (0.1, [LearningRateScheduleCallback(SCALED, 1.0)], None),
        (0.1, [LearningRateWarmupCallback, LearningRateScheduleCallback(SCALED, 1.0, 1)], None),
        (SCALED, [LearningRateWarmupCallback], None),
        (0.1, [LearningRateWarmupCallback], None),
        (0.3, [LearningRateScheduleCallback(0.1, 1.0)], None),
    ],
)
def test_a_rate_that_differs_by_the_ranks_is_told(rate, callbacks, factor, monkeypatch):
    told = []
    monkeypatch.setattr(notices, "tell_once", lambda key, text: told.append(text))
    warmup = LearningRateWarmupCallback
    callbacks = [warmup(0.1, warmup_epochs=1) if each is warmup else each for each in callbacks]
    model, _, _ = fitted(callbacks, 1, keras.optimizers.SGD(rate))
    assert [f"differ by a factor of {factor}," in text for text in told] == [True] * bool(factor)
    # A later fit goes on with the rate that the callbacks have set.
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0, callbacks=callbacks)
    assert len(told) == bool(factor)
