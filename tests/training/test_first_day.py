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
    "the_last_callback_is_forgotten": (
        ", ddl.DDLGlobalVariablesCallback()]",
        "]",
        "Pass ddl.DDLGlobalVariablesCallback() as the last callback",
        True,
    ),
    "x_alone_is_split": (
        SPLIT,
        "x = ddl.split_data(x)\n",
        "Split them together, as in `x, y = ddl.split_data(x, y)`",
        False,
    ),
    "the_data_are_split_twice": (SPLIT, SPLIT * 2, "Split the data once", True),
    "random_data_without_a_seed": (
        "default_rng(0)",
        "default_rng()",
        "set seeds before random choices",
        False,
    ),
    "another_order_on_each_rank": (
        SPLIT,
        "order = np.random.default_rng().permutation(64)\n"
        "x, y = ddl.split_data(x[order], y[order])\n",
        "set seeds before random choices",
        False,
    ),
    "the_rate_is_scaled_twice": (
        "ddl.scale_lr(0.1)",
        "ddl.scale_lr(ddl.scale_lr(0.1))",
        "Pass the rate that suits one rank",
        False,
    ),
    "steps_of_all_ranks": (
        "epochs=2",
        "epochs=2, batch_size=4, steps_per_epoch=16",
        "Divide it by ddl.size()",
        True,
    ),
    "a_search_on_each_rank": (
        "SGD(ddl.scale_lr(0.1)",
        "SGD(ddl.scale_lr(0.1), momentum=np.random.default_rng().random()",
        "All ranks must configure the model in the same way",
        False,
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
        "model.train_on_batch(x, y)\n",
        "optimizer=ddl.DistributedOptimizer(keras.optimizers.SGD(...))",
        True,
    ),
    "the_model_is_saved_on_all_ranks": (
        FIT,
        FIT + "model.save('model.keras')\nmodel = keras.saving.load_model('model.keras')\n",
        "all ranks have saved the model as model.keras. Each file is complete",
        True,
    ),
    "several_files_are_saved_on_all_ranks": (
        FIT,
        FIT + "model.save('a.keras')\nmodel.save_weights('a.weights.h5')\nmodel.save('b.keras')\n",
        "all ranks have saved the model as a.keras, a.weights.h5, b.keras. Each file is complete",
        True,
    ),
    "other_files_are_saved_on_one_rank": (
        FIT,
        FIT + "if ddl.is_root():\n    model.save('first.keras')\nmodel.save('a.keras')\n"
        "model.save(f'{ddl.rank()}.keras')\nmodel.save_weights('a.weights.h5')\n"
        "if ddl.is_root():\n    model.save('best.keras')\n",
        "all ranks have saved the model as a.keras, a.weights.h5. Each file is complete",
        True,
    ),
}


# Those of every run: one of each place where mistakes are found.
GATE = (
    "none",
    "the_callbacks_are_forgotten",
    "random_data_without_a_seed",
    "a_layer_is_adapted_to_a_shard",
    "the_model_is_saved_on_all_ranks",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.gate] if name in GATE else []) for name in MISTAKES],
)
def test_a_mistake_of_the_first_day(name, tmp_path):
    old, new, said, is_well = MISTAKES[name]
    assert old in RIGHT
    (tmp_path / "train.py").write_text(RIGHT.replace(old, new) if old else RIGHT)
    mpi.require("torch")  # it needs the least time
    env = {"KERAS_BACKEND": "torch"}
    done = mpi.run(2, tmp_path / "train.py", env=env, cwd=tmp_path)
    assert (done.returncode == 0) == is_well, done.stdout
    assert said is None or said in done.stdout, done.stdout
    if said is None or "saved" in said:
        assert "warning" not in done.stdout, done.stdout
        weights = [line for line in done.stdout.splitlines() if line.startswith("weights")]
        assert len(weights) == 2 and weights[0] == weights[1], done.stdout
