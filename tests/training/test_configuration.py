"""The configuration of a model, which ranks compare."""

import mpi
import pytest

SCRIPT = """
import sys

import keras

import easyddl.training.agreement.configuration as configuration


class Costly(keras.initializers.Zeros):
    def get_config(self):
        raise AssertionError("a matrix of initial values would take seconds")


numbers = list(range(1000))
layers = [
    keras.layers.Dense(3, kernel_initializer=Costly(), dtype="mixed_float16", name="mine"),
    keras.layers.Dropout(0.25),
    keras.layers.Lambda(lambda x: x * len(numbers)),
]
model = keras.Sequential([keras.Input((4,)), *layers])
rate = keras.optimizers.schedules.CosineDecay(0.1, 7)
model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse", metrics=["mae"])
sections = configuration.sections_of(model)
optimizer = sections["the optimizer"]
assert optimizer["momentum"] == 0.5 and optimizer["learning_rate.decay_steps"] == 7, optimizer
dense, dropout = [each for key, each in sections.items() if key.endswith(("Dense", "Dropout"))]
assert dense["dtype"] == "mixed_float16" and dropout["rate"] == 0.25, (dense, dropout)
assert "mine" not in dense.values(), dense
assert "seed" not in dropout and "kernel_initializer.seed" not in dense
assert not any(len(section) > 30 for section in sections.values()), sections
compiled = sections["compile()"]
assert compiled["loss"] == "mse", compiled
others = {"tensorflow", "jax", "torch"} - {keras.backend.backend()}
print("imported:", sorted(others.intersection(sys.modules)))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_configuration_of_a_model(backend, tmp_path):
    mpi.require(backend)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {"KERAS_BACKEND": backend}
    done = mpi.run(1, tmp_path / "script.py", env=env, ranks_by_mpirun=False)
    assert done.returncode == 0, done.stdout
    # Keras would import TensorFlow to see whether an object is one of its types.
    assert "imported: []" in done.stdout, done.stdout
