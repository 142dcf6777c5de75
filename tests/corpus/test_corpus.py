"""Trains the scripts of the corpus on one process and on two ranks, and compares.

`scripts/` holds plain Keras scripts, in the manner of those that people write. `four_lines.py` puts
easyddl's four lines in, `run_corpus.py` runs them. One script and one backend by hand:

    EASYDDL_CORPUS=all python -m pytest tests/corpus -m "soak or longest or not longest" \\
        -k "convnet and jax"

With EASYDDL_CORPUS=all each script is trained on all backends that it is for.
"""

import functools
import json
import os
import pathlib
import tempfile

import four_lines
import mpi
import numpy as np
import pytest

pytestmark = pytest.mark.mpirun

HERE = pathlib.Path(__file__).parent
RUNNER = HERE / "run_corpus.py"
SCRIPTS = {path.stem: path for path in sorted(HERE.glob("scripts/*/*.py"))}
BACKENDS = ("tensorflow", "jax", "torch")
RANKS = 2
ALL = os.environ.get("EASYDDL_CORPUS") == "all"
# On PyTorch Keras divides float64 losses as float32.
RTOL = {"tensorflow": 1e-6, "jax": 1e-6, "torch": 2e-5}

# Those of the gate, on TensorFlow. Of the others the soak has those on PyTorch, where training
# takes least, and `.ci/run longest` the rest.
QUICK = (
    "convnet",
    "embedding_pooling",
    "transformer_adam",
    "wide_deep",
    "class_weight",
    "dense_adjacency",
    "vae_added_loss",
    "multi_output",
    "distiller_tensorflow",
    "tf_data",
    "early_stopping",
)

# Those that are trained on one backend besides PyTorch, which takes a fifth of the others' time.
ALSO_ON = {
    "causal_language_model": "jax",
    "generator": "jax",
    "normalization_given": "tensorflow",
    "running_mean_layer": "jax",
    "series_gru": "jax",
    "simclr": "tensorflow",
    "train_on_batch": "tensorflow",
    **dict.fromkeys(QUICK, "tensorflow"),
}


def backends_of(script):
    told = four_lines.headers(SCRIPTS[script].read_text())
    return told["backend"].split() if "backend" in told else BACKENDS


def is_chosen(backend, script):
    """Whether a script is trained on a backend: all on PyTorch, and most on one more."""
    if len(backends_of(script)) < len(BACKENDS) or ALL:
        return backend in backends_of(script)
    return backend in ("torch", ALSO_ON.get(script))


def marks_of(backend, script):
    """The marks of a script on a backend."""
    if backend == "tensorflow" and script in QUICK:
        return pytest.mark.gate
    return pytest.mark.soak if backend == "torch" else pytest.mark.longest


def cases():
    for backend in BACKENDS:
        for script in SCRIPTS:
            if is_chosen(backend, script):
                yield pytest.param(
                    backend, script, marks=marks_of(backend, script), id=f"{backend}-{script}"
                )


def read(folder, script, rank):
    """What a rank has left of a script, or None."""
    told = folder / f"{script}.{rank}.json"
    if not told.exists():
        return None
    result = json.loads(told.read_text())
    with np.load(folder / f"{script}.{rank}.npz") as archive:
        return {**result, "state": dict(archive)}


def run_job(ranks, backend, where, folder, paths):
    """Runs scripts; returns what the job printed."""
    env = {"KERAS_BACKEND": backend, "EASYDDL_STALL_ABORT": "90", "JAX_ENABLE_X64": "1"}
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # compiling takes most of the time
    many = where == "ranks"
    limit = 60 + 10 * len(paths)
    try:
        return mpi.run(
            *(ranks, RUNNER, where, folder, *paths),
            env=env,
            timeout=limit,
            cwd=folder,  # where scripts save their models
            ranks_by_mpirun=many,
        ).stdout
    except TimeoutError as error:
        return str(error)


def train_alone(backend, scripts, folder):
    said = run_job(1, backend, "alone", folder, [SCRIPTS[script] for script in scripts])
    lost = {"error": f"The job ended before. It printed:\n{said[-4000:]}"}
    return {script: read(folder, script, 0) or lost for script in scripts}


def train_on_ranks(backend, scripts, folder):
    """One job for all; after a script that fails, another one for those that follow it."""
    for script in scripts:
        source = four_lines.with_four_lines(SCRIPTS[script].read_text())
        (folder / f"{script}.py").write_text(source)
    found, remaining = {}, list(scripts)
    while remaining:
        paths = [folder / f"{script}.py" for script in remaining]
        said = run_job(RANKS, backend, "ranks", folder, paths)
        lost = {"error": f"The ranks parted, or the job ended. It printed:\n{said[-4000:]}"}
        for script in list(remaining):
            results = [read(folder, script, rank) for rank in range(RANKS)]
            found[script] = [result or lost for result in results]
            remaining.remove(script)
            if any(result["error"] for result in found[script]):
                break
    return found


@functools.cache
def trained(backend, scripts):
    with tempfile.TemporaryDirectory() as folder:
        alone = train_alone(backend, scripts, pathlib.Path(folder))
    sound = [script for script in scripts if alone[script]["error"] is None]
    with tempfile.TemporaryDirectory() as folder:
        return alone, train_on_ranks(backend, sound, pathlib.Path(folder))


@pytest.fixture
def results(request, backend, script):
    """What one process and the ranks have left of a script; one job trains all that are chosen."""
    mpi.require(backend)
    others = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and "script" in getattr(item, "fixturenames", ())
    ]
    chosen = tuple(each["script"] for each in others if each.get("backend") == backend)
    alone, on_ranks = trained(backend, chosen)
    return alone[script], on_ranks.get(script, [])


def assert_close(values, expected, rtol, name):
    """Compares arrays, relative to the largest number in them."""
    values, expected = np.asarray(values), np.asarray(expected)
    assert values.shape == expected.shape, (name, values.shape, expected.shape)
    if expected.dtype.kind not in "fc":
        assert (values == expected).all(), (name, values, expected)
        return
    largest = np.abs(expected).max(initial=0)
    difference = np.abs(values - expected).max(initial=0)
    # What is zero but for rounding is all rounding.
    assert difference <= rtol * (largest + 1e-3), (name, difference, largest)


def logs_of(result):
    return {
        f"fit {number}, {name}": values
        for number, logs in enumerate(result["histories"])
        for name, values in logs.items()
    }


@pytest.mark.parametrize(("backend", "script"), list(cases()))
def test_script(results, backend, script):
    told = four_lines.headers(SCRIPTS[script].read_text())
    alone, ranks = results
    for who, result in [("one process", alone), *((f"rank {i}", r) for i, r in enumerate(ranks))]:
        assert result["error"] is None, f"{who}: {result['error']}"
    root = ranks[0]
    for other in ranks[1:]:
        assert list(other["state"]) == list(root["state"])
        for name, value in other["state"].items():
            # Bits, but for the sign of a zero that a gradient accumulator has kept.
            bits = (value + 0).tobytes(), (root["state"][name] + 0).tobytes()
            assert bits[0] == bits[1], f"ranks differ in {name}"
        np.testing.assert_equal(other["histories"], root["histories"])
    for name, value in [*root["state"].items(), *logs_of(root).items()]:
        assert np.isfinite(value).all(), (name, value)
    assert len(root["state"]) == len(alone["state"])
    assert logs_of(root).keys() == logs_of(alone).keys()
    if told.get("compare") == "replicas":
        return
    for name, value in logs_of(alone).items():
        assert_close(logs_of(root)[name], value, RTOL[backend], name)
    pairs = zip(alone["state"].items(), root["state"].values(), strict=True)
    for (name, value), on_ranks in pairs:
        assert_close(on_ranks, value, RTOL[backend], name)
