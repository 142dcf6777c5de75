"""The usual mistakes of a first day: each is right, or the job says what to do.

Each script is a right one with one change. Its ranks run it as a beginner's do.
"""

import mpi
import pytest

pytestmark = pytest.mark.mpirun

RIGHT = """
import easyddl as ddl
import keras
import numpy as np

random = np.random.default_rng(0)
x = random.standard_normal((64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
x, y = ddl.split_data(x, y)
layers = [keras.layers.Dense(2, activation="softmax")]
model = keras.Sequential([keras.Input((4,)), *layers])
optimizer = keras.optimizers.SGD(ddl.scale_lr(0.1))
model.compile(optimizer, "sparse_categorical_crossentropy")
callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
weights = [round(float(each.sum()), 5) for each in model.get_weights()]
print(f"weights {weights}\\n", end="", flush=True)
"""

IMPORTS = "import easyddl as ddl\nimport keras\n"
SPLIT = "x, y = ddl.split_data(x, y)\n"
FIT = "model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)\n"
LAYERS = "layers = ["

# By name: the line, what stands in its place, what the job prints, and whether it ends well.
MISTAKES = {
    "none": ("", "", None, True),
    "the_import_is_forgotten": ("import easyddl as ddl\n", "", "name 'ddl' is not defined", False),
    "the_split_is_forgotten": (SPLIT, "", "Split the data before, by ddl.split_data(x, y)", True),
    "the_scaling_is_forgotten": ("ddl.scale_lr(0.1)", "0.1", None, True),
    "the_callbacks_are_forgotten": (
        ", callbacks=callbacks",
        "",
        "every rank trained alone. Pass callbacks=[ddl.DDLCallback(), ..., ",
        True,
    ),
    "the_callbacks_are_forgotten_and_the_fit_is_interrupted": (
        ", callbacks=callbacks",
        ", callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: 1 / 0)]",
        "model.fit() took steps without reducing gradients: rank ",
        False,
    ),
    "the_callbacks_are_forgotten_and_a_time_limit_ends_the_fit": (
        ", callbacks=callbacks",
        ", callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: ddl.is_root()"
        " and __import__('signal').raise_signal(15))]",
        "model.fit() took steps without reducing gradients: rank 0 trained alone",
        False,
    ),
    "the_callbacks_are_forgotten_and_the_script_exits": (
        FIT,
        FIT.replace(", callbacks=callbacks", "") + "raise SystemExit(3)\n",
        "model.fit() took steps without reducing gradients: rank ",
        False,
    ),
    "the_last_callback_is_forgotten": (
        ", ddl.DDLGlobalVariablesCallback()]",
        "]",
        "Pass ddl.DDLGlobalVariablesCallback() as the last callback",
        True,
    ),
    "random_data_without_a_seed": (
        "default_rng(0)",
        "default_rng()",
        "set seeds before random choices",
        False,
    ),
    "the_rate_is_scaled_twice": (
        "ddl.scale_lr(0.1)",
        "ddl.scale_lr(ddl.scale_lr(0.1))",
        "Pass the rate that suits one rank",
        False,
    ),
    "the_backend_is_set_below_the_import": (
        IMPORTS,
        "import easyddl as ddl\n"
        "import os\n"
        "os.environ['KERAS_BACKEND'] = os.environ.pop('WANTED')\n"
        "import keras\n"
        "assert keras.backend.backend() == os.environ['KERAS_BACKEND']\n",
        None,
        True,
    ),
    "a_layer_is_adapted_to_a_shard": (
        LAYERS,
        "normalization = keras.layers.Normalization()\n"
        "normalization.adapt(x)\n"
        "layers = [normalization, ",
        "Call `adapt` with all data, before split_data",
        True,
    ),
    "training_on_batches": (
        FIT,
        "for i in range(2):\n    model.train_on_batch(x[16 * i :][:16], y[16 * i :][:16])\n",
        "optimizer=ddl.DistributedOptimizer(keras.optimizers.SGD(...))",
        True,
    ),
    "the_model_is_saved_on_all_ranks": (
        FIT,
        FIT + "model.save('model.keras')\nmodel = keras.saving.load_model('model.keras')\n",
        None,
        True,
    ),
}


# Those of every run: one of each place where mistakes are found.
GATE = (
    "none",
    "the_callbacks_are_forgotten",
    "the_callbacks_are_forgotten_and_a_time_limit_ends_the_fit",
    "random_data_without_a_seed",
    "a_layer_is_adapted_to_a_shard",
    "the_model_is_saved_on_all_ranks",
)
FASTEST = "torch"  # it needs the least time


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(
            name, backend, marks=[pytest.mark.gate] * (name in GATE and backend == FASTEST)
        )
        for name in MISTAKES
        for backend in ("tensorflow", "jax", "torch")
    ],
)
def test_a_mistake_of_the_first_day(name, backend, tmp_path):
    old, new, said, is_well = MISTAKES[name]
    assert old in RIGHT
    (tmp_path / "train.py").write_text(RIGHT.replace(old, new) if old else RIGHT)
    mpi.require(backend)
    env = {"WANTED": backend} if "WANTED" in new else {"KERAS_BACKEND": backend}
    done = mpi.run(2, tmp_path / "train.py", env=env, shown=(backend,), cwd=tmp_path)
    assert (done.returncode == 0) == is_well, done.stdout
    assert said is None or said in done.stdout, done.stdout
    if said is None:
        assert "warning" not in done.stdout, done.stdout
        weights = [line for line in done.stdout.splitlines() if line.startswith("weights")]
        assert len(weights) == 2 and weights[0] == weights[1], done.stdout
