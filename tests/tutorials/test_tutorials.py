"""Every tutorial runs, and teaches what it promises."""

import pathlib
import re

import mpi
import numpy as np
import pytest

pytestmark = pytest.mark.mpirun

TUTORIALS = pathlib.Path(__file__).parents[2] / "tutorials"
REPLICAS_OF = pathlib.Path(__file__).with_name("replicas_of.py")

# No cache, and a proxy that refuses at once: as on a host without network.
OFFLINE = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}

SEARCH = {"KERAS_BACKEND": "tensorflow"}


def accuracy(output, ranks):
    (found,) = re.findall(r"^Held-out accuracy with (\d+) rank\(s\): (\S+)$", output, re.MULTILINE)
    assert int(found[0]) == ranks
    return float(found[1])


def accuracies(output):
    """What large_batches.py found, by setting: an accuracy of each seed."""
    found = re.findall(r"^(.+?) +mean .*\((.*)\)$", output, re.MULTILINE)
    names = ["small batches", "large batches, no warmup", "large batches, warmup"]
    assert [name for name, _ in found] == names, output
    return {name: [float(each) for each in text.split()] for name, text in found}


def trials(output):
    """What a search printed of its trials: their parameters, by number, and their scores.

    The score of a trial that failed is not a number.
    """
    found = re.findall(r"^trial (\d+: .+): (\S+)( after \d+ epochs)?$", output, re.MULTILINE)
    assert found, output
    scores = [float(re.sub("failed|RUNNING", "nan", score)) for _, score, _ in found]
    return [(name, epochs) for name, _, epochs in found], scores


def assert_searches_are_equal(script, arguments, folder):
    """The trials of two ranks are those of one process, and equal on both ranks."""
    alone = run_plain(f"plain/{script}", *arguments, env=SEARCH, cwd=folder / "alone")
    together = run_replicas(2, script, *arguments, env=SEARCH, cwd=folder / "together")
    (wanted, wanted_scores), (found, scores) = trials(alone), trials(together)
    assert found == wanted
    # Rounding may change a prediction or two of the 256 that decide.
    np.testing.assert_allclose(scores, wanted_scores, atol=2.5 / 256)


@pytest.fixture
def folder(tmp_path):
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
    return tmp_path


def run_plain(script, *arguments, **options):
    """With `python`, as a script that was never made parallel."""
    done = mpi.run(
        1, TUTORIALS / script, *arguments, shown=["sklearn"], ranks_by_mpirun=False, **options
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_replicas(ranks, script, *arguments, shown=(), **options):
    """With `mpirun`; the ranks' weights are equal at the end."""
    shown = ["sklearn", *shown]
    done = mpi.run(ranks, REPLICAS_OF, TUTORIALS / script, *arguments, shown=shown, **options)
    assert done.returncode == 0, done.stdout
    assert f"Replicas: {ranks}, different ones: 1\n" in done.stdout, done.stdout
    return done.stdout


def test_digits_on_one_process_reads_95_percent():
    output = run_plain("digits.py")
    assert accuracy(output, 1) >= 0.95, output


@mpi.jobs("tensorflow:2", soak="jax:4 torch:3")
def test_digits_on_many_ranks_reads_95_percent(backend, ranks):
    mpi.require(backend)
    env = {"KERAS_BACKEND": backend, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    output = run_replicas(ranks, "digits.py", env=env)
    assert accuracy(output, ranks) >= 0.95, output


def test_replicas_differ_without_the_reduction():
    """So that the test above would find a reduction that does nothing."""
    script = ["--without-reduction", TUTORIALS / "digits.py", "--epochs", "1"]
    done = mpi.run(2, REPLICAS_OF, *script, shown=["sklearn"])
    assert "Replicas: 2, different ones: 2\n" in done.stdout, done.stdout
    assert "every rank trained alone" in done.stdout, done.stdout


@pytest.mark.soak
def test_mnist_cnn_on_one_process(tmp_path):
    env = {**OFFLINE, "KERAS_HOME": str(tmp_path)}
    output = run_plain("mnist_cnn.py", "--epochs", "1", env=env)
    assert "scikit-learn's digits, scaled up" in output
    accuracy(output, 1)


def test_mnist_cnn_on_two_ranks(tmp_path):
    env = {**OFFLINE, "KERAS_HOME": str(tmp_path)}
    output = run_replicas(2, "mnist_cnn.py", "--epochs", "3", env=env)
    # The script has no seed: one epoch reached 0.27 to 0.70, and three 0.87. Chance alone is 0.1.
    assert accuracy(output, 2) >= 0.6, output
    assert output.count("scikit-learn's digits, scaled up") == 1, output
    assert output.count("MNIST is not available") == 1, output


def test_large_batches_on_two_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    arguments = ["--seeds", "1", "--epochs", "2", "--plot", path]
    output = run_replicas(2, "large_batches.py", *arguments, shown=["matplotlib"], cwd=tmp_path)
    assert [len(found) for found in accuracies(output).values()] == [1, 1, 1], output
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--trials", "3", "--epochs", "2"], id="RandomSearch"),
        pytest.param(["--tuner", "Hyperband"], id="Hyperband", marks=pytest.mark.soak),
    ],
)
def test_keras_tuner_finds_on_two_ranks_what_it_finds_on_one(arguments, folder):
    mpi.require("keras_tuner")
    assert_searches_are_equal("tune_with_keras_tuner.py", arguments, folder)
    # The root alone has written, and its files can be read again.
    (project,) = (folder / "together").iterdir()
    assert len(list(project.glob("*/trial_*/checkpoint.weights.h5"))) >= 3


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "fault", "is_skipped"),
    [
        ("ddl.rank() == 1", "import os; os.kill(os.getpid(), 9)", False),
        ("True", "raise ValueError('on purpose')", True),
    ],
    ids=["killed", "failed"],
)
def test_a_search_with_keras_tuner_goes_on(victim, fault, is_skipped, folder):
    """A rank dies at the end of the second trial, or all ranks raise, and the job starts again."""
    mpi.require("keras_tuner")
    name, arguments = "tune_with_keras_tuner.py", ["--trials", "3", "--epochs", "2"]
    alone = run_plain(f"plain/{name}", *arguments, env=SEARCH, cwd=folder / "alone")
    line = "    scores.append("
    text = (TUTORIALS / name).read_text()
    assert text.count(line) == 1
    planted = f"    if len(scores) == 1 and {victim}:\n        {fault}\n{line}"
    (folder / name).write_text(text.replace(line, planted))
    options = {"env": SEARCH, "cwd": folder / "together"}
    done = mpi.run(2, folder / name, *arguments, shown=["sklearn"], **options)
    assert done.returncode != 0, done.stdout
    together = run_replicas(2, name, *arguments, **options)
    (wanted, wanted_scores), (found, scores) = trials(alone), trials(together)
    assert found == wanted
    if is_skipped:
        wanted_scores[1] = float("nan")
    np.testing.assert_allclose(scores, wanted_scores, atol=2.5 / 256)


def test_optuna_prunes_on_two_ranks_what_it_prunes_on_one(folder):
    """A job that is killed in a trial leaves it without a value."""
    mpi.require("optuna")
    import optuna

    for name in ("alone", "together"):
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=0),
            storage=f"sqlite:///{folder / name}/search.db",
            study_name="digits",
        )
        study.ask({"momentum": optuna.distributions.CategoricalDistribution([0.0, 0.9])})
    arguments = ["--trials", "4", "--epochs", "2", "--storage", "sqlite:///search.db"]
    assert_searches_are_equal("tune_with_optuna.py", arguments, folder)


@pytest.mark.parametrize("library", ["optuna", "keras_tuner"])
def test_a_search_without_trials_is_one_line(library, tmp_path):
    mpi.require(library)
    script = TUTORIALS / "plain" / f"tune_with_{library}.py"
    options = {"shown": ["sklearn"], "cwd": tmp_path, "timeout": 60, "ranks_by_mpirun": False}
    done = mpi.run(1, script, "--trials", "0", env=SEARCH, **options)
    assert done.stdout.endswith("error: --trials and --epochs must be 1 or more\n"), done.stdout


@pytest.mark.longest
def test_warmup_brings_large_batches_back(tmp_path):
    found = list(accuracies(run_plain("large_batches.py", cwd=tmp_path)).values())
    small, cold, warm = found
    error = np.sqrt((np.var(small, ddof=1) + np.var(warm, ddof=1)) / len(small))
    # In percent. Rounding differs between processors, and two errors alone are met by chance.
    much = max(1, 2 * error)
    assert np.mean(small) - np.mean(warm) < much < np.mean(small) - np.mean(cold), found
