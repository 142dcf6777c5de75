"""Learning rates scaled with the number of ranks."""

import copy
import math
import re
import textwrap
import types
from fractions import Fraction

import keras
import numpy as np
import pytest
from keras.optimizers import schedules

from easyddl.callbacks import LearningRateWarmupCallback
from easyddl.optimizers.scale_lr import scale_lr
from easyddl.optimizers.warmup import LearningRateWarmup
from easyddl.runtime import world

SIZES = [1, 2, 3, 4, 8]
FACTORS = {"linear": lambda k: k, "sqrt": lambda k: k**0.5, "none": lambda k: 1}
STEPS = [0, 1, 5, 6, 12, 20, 33]

SCHEDULES = {
    "cosine": lambda: schedules.CosineDecay(0.1, decay_steps=20, alpha=0.2),
    "cosine_warmup": lambda: schedules.CosineDecay(
        0.01, decay_steps=20, alpha=0.1, warmup_target=0.1, warmup_steps=5, name="warm"
    ),
    "cosine_warmup_from_zero": lambda: schedules.CosineDecay(
        0.0, decay_steps=20, warmup_target=0.1, warmup_steps=5
    ),
    "cosine_restarts": lambda: schedules.CosineDecayRestarts(
        0.1, first_decay_steps=7, t_mul=1.5, m_mul=0.9, alpha=0.1
    ),
    "exponential": lambda: schedules.ExponentialDecay(0.1, 10, 0.5),
    "exponential_staircase": lambda: schedules.ExponentialDecay(0.1, 10, 0.5, staircase=True),
    "inverse_time": lambda: schedules.InverseTimeDecay(0.1, 10, 0.5),
    "piecewise": lambda: schedules.PiecewiseConstantDecay([5, 20], [0.1, 0.05, 0.01]),
    "polynomial": lambda: schedules.PolynomialDecay(0.1, 20, end_learning_rate=0.01, power=2.0),
    "polynomial_cycle": lambda: schedules.PolynomialDecay(0.1, 20, cycle=True),
}


@pytest.fixture
def ranks(monkeypatch):
    """Returns a function that sets the number of ranks."""
    return lambda size: monkeypatch.setattr(world, "size", lambda: size)


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return SCHEDULES[request.param]()


def values(schedule):
    return np.array([float(schedule(step)) for step in STEPS])


# Numbers.


@pytest.mark.parametrize("rule", FACTORS)
@pytest.mark.parametrize("size", SIZES)
def test_number_is_scaled_by_the_rule(ranks, size, rule):
    ranks(size)
    assert scale_lr(0.01, rule=rule) == pytest.approx(0.01 * FACTORS[rule](size), rel=1e-12)


def test_the_rule_is_linear_unless_told_otherwise(ranks):
    ranks(4)
    assert scale_lr(0.25) == 1.0


@pytest.mark.parametrize(
    "lr",
    [1, 1.0, 0, np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int64(2), Fraction(1, 2)],
)
def test_any_number_gives_a_python_float(ranks, lr):
    ranks(3)
    scaled = scale_lr(lr)
    assert type(scaled) is float
    assert scaled == 3 * float(lr)
    assert type(scale_lr(lr, rule="sqrt")) is type(scale_lr(lr, rule="none")) is float


def test_a_rate_that_is_scaled_twice(ranks):
    ranks(3)
    rate = scale_lr(0.1)
    schedule = schedules.CosineDecay(rate, 20)
    for name, twice in {
        "lr": lambda: scale_lr(rate),
        "lr.initial_learning_rate": lambda: scale_lr(schedule),
        "lr.values[0]": lambda: scale_lr(
            scale_lr(schedules.PiecewiseConstantDecay([5], [0.1, 0.2]))
        ),
        "learning_rate": lambda: LearningRateWarmup(rate, 10),
        "initial_lr": lambda: LearningRateWarmupCallback(rate),
    }.items():
        with pytest.raises(ValueError, match=rf"`{re.escape(name)}` has already been scaled"):
            twice()
    # Equal numbers are no such rates, nor is what the script computes from one.
    again = scale_lr(0.1)
    assert scale_lr(float(repr(rate))) == scale_lr(again * 1.0) == 3 * rate
    assert scale_lr(scale_lr(0.1, rule="none")) == rate


def test_optimizer_takes_the_scaled_number(ranks):
    ranks(8)
    optimizer = keras.optimizers.SGD(scale_lr(0.01))
    assert float(optimizer.learning_rate) == pytest.approx(0.08)


# Schedules.


@pytest.mark.parametrize(
    ("size", "rule"), [(1, "linear"), (3, "linear"), (8, "linear"), (8, "sqrt"), (3, "none")]
)
def test_schedule_is_scaled_at_every_step(ranks, schedule, size, rule):
    ranks(size)
    scaled = scale_lr(schedule, rule=rule)
    # A cosine in float32 that ought to be 0 is about 1e-8, on either side.
    np.testing.assert_allclose(
        values(scaled), FACTORS[rule](size) * values(schedule), rtol=1e-5, atol=1e-7
    )


def test_scaled_schedule_is_a_new_object_of_keras_own_class(ranks, schedule):
    ranks(4)
    for rule in FACTORS:
        scaled = scale_lr(schedule, rule=rule)
        assert scaled is not schedule
        assert type(scaled) is type(schedule)
        assert type(scaled).__module__.partition(".")[0] == "keras"


def test_schedule_passed_in_is_left_unchanged(ranks, schedule):
    ranks(4)
    before = copy.deepcopy(schedule.get_config())
    scaled = scale_lr(schedule)
    for value in vars(scaled).values():
        if isinstance(value, list):
            value.append(1e9)  # no list is shared
    assert schedule.get_config() == before


def test_only_rates_change_in_the_config(ranks, schedule):
    ranks(4)
    before, after = schedule.get_config(), scale_lr(schedule).get_config()
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"initial_learning_rate", "warmup_target", "end_learning_rate", "values"}


def test_scaled_schedule_is_serializable(ranks, schedule):
    ranks(3)
    scaled = scale_lr(schedule)
    config = keras.saving.serialize_keras_object(scaled)
    assert config["module"] == "keras.optimizers.schedules"
    assert config["registered_name"] is None
    loaded = keras.saving.deserialize_keras_object(config)
    assert type(loaded) is type(schedule)
    np.testing.assert_array_equal(values(loaded), values(scaled))


def test_every_schedule_of_keras_is_known(ranks):
    ranks(2)
    of_keras = {
        value
        for value in vars(schedules).values()
        if isinstance(value, type) and issubclass(value, schedules.LearningRateSchedule)
    }
    covered = {type(make()) for make in SCHEDULES.values()}
    assert of_keras - covered == {schedules.LearningRateSchedule}


def test_numpy_rates_in_a_schedule(ranks):
    ranks(2)
    schedule = schedules.PiecewiseConstantDecay((5,), (np.float64(0.5), np.float64(0.25)))
    assert scale_lr(schedule).get_config()["values"] == [1.0, 0.5]
    assert schedule.values == (0.5, 0.25)


# What is refused.


def refused(error, *args, **kwargs):
    """The message of the error, which has to end with what was received."""
    with pytest.raises(error) as caught:
        scale_lr(*args, **kwargs)
    message = str(caught.value)
    assert "Received: " in message
    return message


@pytest.mark.parametrize("rule", ["cubic", "Linear", None, 2, ["linear"]])
def test_unknown_rule_names_the_rules(ranks, rule):
    ranks(2)
    message = refused(ValueError, 0.1, rule=rule)
    assert "'linear', 'sqrt', 'none'" in message
    assert message.endswith(f"Received: rule={rule!r}")


def test_unknown_schedule(ranks):
    class Mine(schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    ranks(2)
    message = refused(TypeError, Mine())
    assert "Multiply the rates by `ddl.size()`" in message
    assert message.endswith("of type Mine")


def test_warmup_is_scaled_already(ranks):
    ranks(2)
    message = refused(TypeError, LearningRateWarmup(0.1, 5))
    assert "already scales its rate with the number of ranks." in message
    assert "Pass it to the optimizer without `scale_lr`" in message
    assert message.endswith("of type LearningRateWarmup")


def test_the_whole_square_root_rule_keeps_the_averages_length(ranks):
    """As the docstring has it: a step of 4 ranks is one of 4 times the samples."""
    ranks(4)
    (example,) = re.findall(r"k = ddl.size\(\).*?\n    \)\n", scale_lr.__doc__, re.DOTALL)
    ddl = types.SimpleNamespace(size=world.size, scale_lr=scale_lr)
    found = {"ddl": ddl, "keras": keras}
    exec(textwrap.dedent("    " + example), found)
    config = found["optimizer"].get_config()
    assert config["learning_rate"] == pytest.approx(2e-3)
    assert config["beta_1"] == pytest.approx(0.6)
    assert config["beta_2"] == pytest.approx(0.996)
    assert config["epsilon"] == pytest.approx(5e-8)


def test_subclass_of_a_known_schedule(ranks):
    class Mine(schedules.ExponentialDecay):
        pass

    ranks(2)
    assert "subclasses" in refused(TypeError, Mine(0.1, 10, 0.5))


@pytest.mark.parametrize("lr", [-0.1, -1, math.nan, math.inf, -math.inf, np.float32("nan")])
def test_number_that_is_no_learning_rate(ranks, lr):
    ranks(2)
    message = refused(ValueError, lr)
    assert "finite and not negative" in message
    assert message.endswith(f"Received: lr={lr!r}")


@pytest.mark.parametrize("lr", [True, None, "0.1", [0.1], {"lr": 0.1}, 1j])
def test_things_that_are_no_number(ranks, lr):
    ranks(2)
    message = refused(TypeError, lr)
    assert "Pass a Python float" in message
    assert message.endswith(f"Received: lr={lr!r} of type {type(lr).__name__}")


def test_optimizer(ranks):
    ranks(2)
    message = refused(TypeError, keras.optimizers.SGD(0.1))
    assert "keras.optimizers.SGD(ddl.scale_lr(0.01))" in message


def test_schedule_class_instead_of_an_object(ranks):
    ranks(2)
    refused(TypeError, schedules.ExponentialDecay)


def test_tensors_and_arrays(ranks):
    ranks(2)
    for lr in (keras.ops.convert_to_tensor(0.1), keras.Variable(0.1), np.array(0.1)):
        assert "`float(value)`" in refused(TypeError, lr)


@pytest.mark.parametrize("rate", [-0.1, math.nan])
def test_rate_in_a_schedule_is_checked_by_name(ranks, rate):
    ranks(2)
    polynomial = schedules.PolynomialDecay(0.1, 10, end_learning_rate=rate)
    assert "lr.end_learning_rate=" in refused(ValueError, polynomial)
    piecewise = schedules.PiecewiseConstantDecay([5], [0.1, rate])
    assert "lr.values[1]=" in refused(ValueError, piecewise)
