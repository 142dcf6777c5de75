"""The learning rate's rise over the first steps, and what it does to a velocity."""

import keras
import numpy as np
import pytest
from keras.optimizers import schedules

from easyddl.optimizers.warmup import LearningRateWarmup
from easyddl.runtime import world
from easyddl.training.step import momentum_correction


def rates(schedule, steps):
    return np.array([float(schedule(step)) for step in steps])


@pytest.mark.parametrize(("rule", "factor"), [("linear", 9), ("sqrt", 3), ("none", 1)])
def test_it_rises_evenly_to_its_full_height(rule, factor):
    steps = np.arange(15)
    found = rates(LearningRateWarmup(0.1, 10, rule=rule, size=9), steps)
    expected = np.interp(steps, [0, 10], [0.1, 0.1 * factor])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_its_size_is_that_of_the_job(monkeypatch):
    monkeypatch.setattr(world, "size", lambda: 4)
    assert float(LearningRateWarmup(0.1, 10)(10)) == pytest.approx(0.4)


def test_epochs_and_no_warmup():
    found = LearningRateWarmup(0.1, warmup_epochs=2.5, steps_per_epoch=4, size=2)
    assert found.warmup_steps == 10
    np.testing.assert_allclose(rates(LearningRateWarmup(0.1, 0, size=4), range(3)), 0.4)


def test_an_inner_schedule_counts_from_the_start():
    inner = schedules.PiecewiseConstantDecay([3, 6], [1.0, 0.1, 0.01])
    found = rates(LearningRateWarmup(inner, 5, size=6), range(10))
    expected = rates(inner, range(10)) * np.minimum(np.arange(10) + 1, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_step_is_an_update_under_accumulation():
    plain = LearningRateWarmup(schedules.ExponentialDecay(0.1, 5, 0.5), 6, size=3)
    config = {**plain.get_config(), "gradient_accumulation_steps": 4}
    accumulating = LearningRateWarmup.from_config(config)
    found = rates(accumulating, range(40))
    np.testing.assert_array_equal(found, np.repeat(rates(plain, range(10)), 4))


def test_it_is_saved_with_its_model(tmp_path):
    inner = schedules.CosineDecay(0.1, 20)
    schedule = LearningRateWarmup(inner, 5, rule="sqrt", size=7, correct_momentum=False)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer._learning_rate
    assert type(loaded) is LearningRateWarmup and loaded.get_config() == schedule.get_config()
    np.testing.assert_array_equal(rates(loaded, range(30)), rates(schedule, range(30)))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"learning_rate": -1.0, "warmup_steps": 1}, "learning_rate=-1.0"),
        ({"learning_rate": 0.1}, "Pass either `warmup_steps` or `warmup_epochs`"),
        ({"learning_rate": 0.1, "warmup_steps": 1, "warmup_epochs": 1}, "Pass either"),
        ({"learning_rate": 0.1, "warmup_steps": 2.5}, "warmup_steps=2.5"),
        ({"learning_rate": 0.1, "warmup_steps": -1}, "warmup_steps=-1"),
        ({"learning_rate": 0.1, "warmup_epochs": -1, "steps_per_epoch": 2}, "warmup_epochs=-1"),
        ({"learning_rate": 0.1, "warmup_epochs": 5}, "steps_per_epoch=None"),
        ({"learning_rate": 0.1, "warmup_steps": 1, "rule": "cubic"}, "rule='cubic'"),
        ({"learning_rate": 0.1, "warmup_steps": 1, "size": 0}, "size=0"),
        (
            {"learning_rate": 0.1, "warmup_steps": 1, "gradient_accumulation_steps": 0},
            "gradient_accumulation_steps=0",
        ),
    ],
)
def test_wrong_numbers(arguments, error):
    with pytest.raises(ValueError, match=error):
        LearningRateWarmup(**arguments)


@pytest.mark.parametrize("rate", ["0.1", None, True, np.zeros(2)])
def test_wrong_rates(rate):
    with pytest.raises(TypeError, match="`learning_rate` must be a number, or one of Keras's"):
        LearningRateWarmup(rate, 1)


# The momentum correction.

GRADIENTS = np.random.default_rng(0).standard_normal((12, 5)).astype("float32")


def trained(optimizer, gradients=GRADIENTS):
    """What an optimizer makes of a variable of zeros."""
    variable = keras.Variable(np.zeros(5, "float32"))
    unhook = momentum_correction.hook(optimizer)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    unhook()
    return variable.numpy()


def sgd_of_papers(rates, momentum, nesterov=False, gradients=GRADIENTS):
    """`v = m * v + g; w = w - rate * v`: the rate stays outside of the velocity."""
    velocity, weight = np.zeros(5), np.zeros(5)
    for rate, gradient in zip(rates, gradients, strict=True):
        velocity = momentum * velocity + gradient
        step = momentum * velocity + gradient if nesterov else velocity
        weight = weight - rate * step
    return weight


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum(nesterov):
    schedule = LearningRateWarmup(0.1, 8, size=5)
    found = trained(keras.optimizers.SGD(schedule, momentum=0.9, nesterov=nesterov))
    expected = sgd_of_papers(rates(schedule, range(12)), 0.9, nesterov)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    uncorrected = LearningRateWarmup(0.1, 8, size=5, correct_momentum=False)
    plain = trained(keras.optimizers.SGD(uncorrected, momentum=0.9, nesterov=nesterov))
    assert np.abs(plain - expected).max() > 0.01 * np.abs(expected).max()


def test_only_the_rise_is_corrected():
    inner = schedules.ExponentialDecay(0.1, 3, 0.5)
    found = trained(keras.optimizers.SGD(LearningRateWarmup(inner, 0, size=2), momentum=0.9))
    doubled = schedules.ExponentialDecay(0.2, 3, 0.5)
    expected = trained(keras.optimizers.SGD(doubled, momentum=0.9))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_velocities_are_left_alone_after_the_rise(monkeypatch):
    growths, scale = [], momentum_correction.scale

    def counted(optimizer, growth):
        growths.append(float(growth))
        scale(optimizer, growth)

    monkeypatch.setattr(momentum_correction, "scale", counted)
    trained(keras.optimizers.SGD(LearningRateWarmup(0.1, 4, size=5), momentum=0.9))
    if keras.backend.backend() == "jax":  # where XLA multiplies them by 1
        growths = [growth for growth in growths if growth != 1]
    np.testing.assert_allclose(growths, [2 / 1, 3 / 2, 4 / 3, 5 / 4], rtol=1e-6)


def test_under_accumulation():
    schedule = LearningRateWarmup(0.1, 3, size=5, gradient_accumulation_steps=2)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, gradient_accumulation_steps=2)
    found = trained(optimizer)
    pairs = GRADIENTS.reshape(6, 2, 5).mean(1)
    expected = sgd_of_papers(rates(schedule, range(0, 12, 2)), 0.9, gradients=pairs)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.skipif(
    keras.backend.backend() == "jax",
    reason="Keras's own `LossScaleOptimizer.apply` leaks there: it has `stateless_apply`",
)
def test_under_a_loss_scale_that_is_too_large_at_times():
    schedule = LearningRateWarmup(0.1, 8, size=5)
    inner = keras.optimizers.SGD(schedule, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
    with_infinities = np.insert(GRADIENTS, [2, 7], np.inf, axis=0)
    scaled = []
    scale = 1.0
    for gradient in with_infinities:
        scaled.append(gradient * scale)
        scale = scale / 2 if np.isinf(gradient).any() else scale
    found = trained(optimizer, scaled)
    np.testing.assert_allclose(found, sgd_of_papers(rates(schedule, range(12)), 0.9), rtol=1e-4)


def test_rmsprop_with_momentum():
    def trained_with(correct):
        schedule = LearningRateWarmup(0.01, 8, size=5, correct_momentum=correct)
        return trained(keras.optimizers.RMSprop(schedule, rho=0.9, momentum=0.9, epsilon=1e-7))

    all_rates = rates(LearningRateWarmup(0.01, 8, size=5), range(12))
    square, velocity, weight = np.zeros(5), np.zeros(5), np.zeros(5)
    for rate, gradient in zip(all_rates, GRADIENTS, strict=True):
        square = 0.9 * square + 0.1 * gradient**2
        velocity = 0.9 * velocity + gradient / np.sqrt(square + 1e-7)
        weight = weight - rate * velocity
    np.testing.assert_allclose(trained_with(True), weight, rtol=1e-4)
    assert np.abs(trained_with(False) - weight).max() > 0.01 * np.abs(weight).max()


def test_optimizers_that_hold_no_rate_in_a_velocity_are_left_alone():
    schedule = LearningRateWarmup(0.1, 8, size=5)
    for optimizer in (keras.optimizers.SGD(schedule), keras.optimizers.Adam(schedule)):
        optimizer.build([keras.Variable(np.zeros(5))])
        assert momentum_correction.velocities(optimizer) == []
