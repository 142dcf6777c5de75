"""What checkpoints are made of: arguments, random numbers, and steps of another size."""

import random
from fractions import Fraction

import keras
import numpy as np
import pytest

import easyddl as ddl
from easyddl.checkpoint import saved_random_states
from easyddl.optimizers import rescaling

CALLBACKS = [lambda **kw: ddl.ModelCheckpoint("m.keras", **kw),
             lambda **kw: ddl.BackupAndRestore("backup", **kw)]  # fmt: skip


@pytest.mark.parametrize("make", CALLBACKS)
@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "batch", None])
def test_save_freq_is_an_epoch_or_a_number(make, wrong):
    with pytest.raises(ValueError, match="`save_freq` must be"):
        make(save_freq=wrong)


@pytest.mark.parametrize("wrong", ["gs://bucket/m.keras", "", None])
def test_paths_are_local(wrong):
    with pytest.raises(ValueError, match="`filepath` must be a path"):
        ddl.ModelCheckpoint(wrong)
    with pytest.raises(ValueError, match="`backup_dir` must be a path"):
        ddl.BackupAndRestore(wrong)


@pytest.mark.parametrize("wrong", ["cubic", None, 2])
def test_rescale_is_a_rule(wrong):
    with pytest.raises(ValueError, match="`rescale` must be"):
        ddl.BackupAndRestore("backup", rescale=wrong)


def model_with_dropout():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def draw(model):
    mask = np.asarray(model.layers[0](np.ones((1, 99)), training=True)).tolist()
    return mask, np.asarray(keras.random.uniform((3,))).tolist(), random.random(), np.random.rand()


def test_random_numbers_go_on_where_they_were():
    model = model_with_dropout()
    draw(model)
    np.random.standard_normal()  # one of a pair, of which the other is kept
    captured = saved_random_states.capture(model)
    first = draw(model), np.random.standard_normal()
    keras.utils.set_random_seed(8)
    other = model_with_dropout()
    assert draw(other) != first[0]
    saved_random_states.restore(other, captured)
    assert (draw(other), np.random.standard_normal()) == first


def test_random_numbers_of_a_rank_that_was_not_there():
    model = model_with_dropout()
    captured = saved_random_states.capture(model)
    own = random.getstate(), np.random.get_state()[1].tolist()
    saved_random_states.restore(model, saved_random_states.derive_for_rank(captured, 3))
    seed, count = captured["generators"][0]
    state = model.layers[0].seed_generator.state.numpy().tolist()
    assert state == [(seed + 3) % 2**32, count]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == own


def test_random_numbers_of_another_model():
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    captured = saved_random_states.capture(model_with_dropout())
    with pytest.raises(ValueError, match="1 seed generators"):
        saved_random_states.restore(plain, captured)


def built(optimizer):
    variable = keras.Variable(np.ones(3, "float32"))
    optimizer.build([variable])
    optimizer.apply([keras.ops.ones(3)], [variable])
    return optimizer


def test_a_plain_rate_and_its_velocity():
    optimizer = built(keras.optimizers.SGD(0.4, momentum=0.9))
    rescaling.rescale(keras.optimizers.LossScaleOptimizer(optimizer), 0.5, Fraction(2))
    np.testing.assert_allclose(optimizer.learning_rate.numpy(), 0.2)
    np.testing.assert_allclose(optimizer.momentums[0].numpy(), -0.2)
    assert int(optimizer._iterations.numpy()) == 1


@pytest.mark.parametrize(
    ("each", "count", "steps", "want"),
    [(None, 9, Fraction(2), 18), (None, 9, Fraction(1, 2), 4), (3, 11, Fraction(2), 20)],
)
def test_the_steps_of_a_schedule(each, count, steps, want):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.4, 10, 0.5)
    optimizer = built(keras.optimizers.SGD(schedule, 0.9, gradient_accumulation_steps=each))
    velocity = optimizer.momentums[0].numpy()
    optimizer._iterations.assign(count)
    rescaling.rescale(optimizer, 0.5, steps)
    assert int(optimizer._iterations.numpy()) == want
    np.testing.assert_array_equal(optimizer.momentums[0].numpy(), velocity)
