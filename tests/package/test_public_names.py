import importlib.metadata
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import mpi
import pytest

import easyddl as ddl
from easyddl.runtime import entry_point

WORLD = "init rank size local_rank local_size node_rank num_nodes is_root barrier"
COLLECTIVES = "allreduce broadcast allgather reduce_scatter alltoall"
OBJECTS = "broadcast_object allgather_object root_first collectives_in"
TRAINING = (
    "split_data scale_lr DDLCallback DDLGlobalVariablesCallback DistributedOptimizer "
    "broadcast_variables RankZero LearningRateWarmup LearningRateWarmupCallback "
    "LearningRateScheduleCallback ProgressCallback ModelCheckpoint BackupAndRestore "
    "SyncBatchNormalization sync_batch_norm register_metric register_layer predict"
)
LAUNCH = "run Ranks RankError"
NAMES = " ".join((WORLD, COLLECTIVES, OBJECTS, TRAINING, LAUNCH)).split()


def python(*lines, tmp_path, **env):
    """Runs lines in a Python of their own."""
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env=mpi.environment(env, shown=mpi.NOT_NEEDED),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_the_names_are_exactly_these():
    assert sorted(ddl.__all__) == sorted(NAMES)
    assert len(set(ddl.__all__)) == len(ddl.__all__)


def test_the_version_is_that_of_the_package():
    assert ddl.__version__ == importlib.metadata.version("easyddl")


def test_dir_shows_what_a_user_may_import():
    assert sorted(dir(ddl)) == sorted([*NAMES, "callbacks", "layers", "optimizers"])


def test_the_reference_has_all_of_them():
    text = (pathlib.Path(__file__).parents[2] / "tutorials" / "reference.md").read_text()
    found = re.findall(r"^\.\. auto(?:class|function):: easyddl\.(\w+)$", text, re.MULTILINE)
    assert sorted(found) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_there_with_a_docstring(name):
    thing = getattr(ddl, name)
    assert callable(thing) and inspect.getdoc(thing)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("allreduce", {"x": inspect.Parameter.empty, "op": "mean"}),
        ("broadcast", {"x": inspect.Parameter.empty, "root_rank": 0}),
        ("allgather", {"x": inspect.Parameter.empty}),
        ("reduce_scatter", {"x": inspect.Parameter.empty, "op": "sum"}),
        ("alltoall", {"x": inspect.Parameter.empty, "splits": None}),
        ("broadcast_object", {"obj": inspect.Parameter.empty, "root_rank": 0}),
        ("allgather_object", {"obj": inspect.Parameter.empty}),
        ("broadcast_variables", {"variables": inspect.Parameter.empty, "root_rank": 0}),
        ("root_first", {}),
        ("collectives_in", {"thread": inspect.Parameter.empty}),
        ("barrier", {}),
        ("init", {}),
    ],
)
def test_parameters(name, parameters):
    found = inspect.signature(getattr(ddl, name)).parameters
    assert {key: each.default for key, each in found.items()} == parameters


def public_functions_of(thing):
    """Returns a function, or the constructor and the public methods of a class, by name.

    Methods that the class inherits from Keras are left out.
    """
    if not inspect.isclass(thing):
        return {thing.__name__: thing}
    found = {}
    for name in dir(thing):
        if name in ("__init__", "__call__") or not name.startswith("_"):
            member = inspect.getattr_static(thing, name)
            if isinstance(member, property):
                member = member.fget
            found[name] = inspect.unwrap(getattr(member, "__func__", member))
    return {
        name: each
        for name, each in found.items()
        if inspect.isfunction(each) and each.__module__.startswith("easyddl")
    }


def missing_annotations(function):
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        if name not in ("self", "cls") and parameter.annotation is parameter.empty:
            yield name
    if signature.return_annotation is signature.empty:
        yield "return"


@pytest.mark.parametrize("name", NAMES)
def test_each_is_annotated(name):
    functions = public_functions_of(getattr(ddl, name))
    missing = {key: list(missing_annotations(each)) for key, each in functions.items()}
    assert functions and not any(missing.values()), missing


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_mypy_accepts_a_script_and_refuses_misuse():
    """Each misuse in the script has a `type: ignore`, and mypy reports those without an error."""
    script = pathlib.Path(__file__).with_name("typed_script.py")
    root = script.parents[2]
    assert script.read_text().count("# type: ignore[") == 6
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", script],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_keras_is_imported_at_the_first_use_of_a_name_that_needs_it(tmp_path):
    done = python(
        "import sys",
        "import easyddl as ddl",
        "assert callable(ddl.run) and callable(ddl.rank) and not hasattr(ddl, 'nothing')",
        "assert not {'keras', 'jax', 'tensorflow', 'torch'} & set(sys.modules)",
        "from easyddl import DDLCallback",
        "assert 'keras' in sys.modules and ddl.callbacks.DDLCallback is DDLCallback",
        "import keras",
        "assert keras.Model.fit.__module__ == keras.Model.fit.__wrapped__.__module__",
        "assert ddl.size() == 1",
        tmp_path=tmp_path,
        **mpi.ANY_BACKEND,
    )
    assert done.returncode == 0, done.stderr


def test_folders_that_import_keras_are_known():
    package = pathlib.Path(ddl.__file__).parent
    found = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search("^ *(import|from) keras", path.read_text(), re.MULTILINE)
    }
    assert found and found <= set(entry_point._KERAS_FOLDERS)


# The callback is then the first name that needs Keras, after `model.fit` has been looked up.
@pytest.mark.full
@pytest.mark.parametrize(
    "imports", ["easyddl, keras", "keras, easyddl", "easyddl.callbacks, easyddl.collectives, keras"]
)
def test_one_process_trains_with_line_four_alone(imports, tmp_path):
    done = python(
        f"import {imports}",
        "import numpy as np",
        "model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])",
        "model.compile('sgd', 'mse')",
        "x = np.ones((4, 2), 'float32')",
        "history = model.fit(x, x[:, :1], verbose=0, callbacks=[",
        "    easyddl.DDLCallback(), easyddl.DDLGlobalVariablesCallback()])",
        "assert len(history.epoch) == 1",
        tmp_path=tmp_path,
        **mpi.ANY_BACKEND,
    )
    assert done.returncode == 0, done.stderr


RANK = {"PMI_RANK": "1", "PMI_SIZE": "2", **mpi.ANY_BACKEND}


@pytest.mark.full
def test_a_rank_imports_keras_when_its_script_does(tmp_path):
    done = python(
        "import os, sys",
        "import easyddl",
        "assert not {'keras', 'jax', 'tensorflow', 'torch'} & set(sys.modules)",
        "assert '_EASYDDL_PROCESS' in os.environ  # by which a data worker knows that it is none",
        "import keras",
        "assert easyddl.callbacks.__name__ in sys.modules and 'split_data' in vars(easyddl)",
        "os._exit(0)  # would look for the other ranks",
        tmp_path=tmp_path,
        **RANK,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("environment", [RANK, mpi.ANY_BACKEND], ids=["rank", "process"])
def test_a_search_for_keras_that_does_not_import_it(environment, tmp_path):
    """As TensorFlow searches for Keras before it imports it."""
    done = python(
        "import importlib.util, json, os",
        "import easyddl",
        "found = importlib.util.find_spec('keras')",
        "assert found.origin.endswith('__init__.py') and 'split_data' not in vars(easyddl)",
        "import keras",
        "assert 'split_data' in vars(easyddl)",
        "assert type(keras.__loader__) is type(keras.__spec__.loader) is type(json.__loader__)",
        "os._exit(0)",
        tmp_path=tmp_path,
        **environment,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("imports", ["easyddl, keras", "keras, easyddl"])
def test_another_backend_after_easyddl_is_an_error_that_says_so(imports, tmp_path):
    done = python(
        f"import {imports}",
        "keras.config.set_backend(keras.backend.backend())",
        tmp_path=tmp_path,
        **mpi.ANY_BACKEND,
    )
    assert done.returncode != 0
    assert "RuntimeError: Keras was imported a second time" in done.stderr, done.stderr


@pytest.mark.full
def test_another_backend_before_easyddl(tmp_path):
    done = python(
        "import keras",
        "keras.config.set_backend(keras.backend.backend())",
        "import easyddl, keras",
        "assert keras.Model.fit.__code__.co_filename.startswith(easyddl.__path__[0])",
        tmp_path=tmp_path,
        **mpi.ANY_BACKEND,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_import_starts_nothing(backend, tmp_path):
    mpi.require(backend)
    done = python(
        "import sys",
        "import keras",
        "before = set(sys.modules)  # Keras and TensorFlow import JAX where it is installed",
        "from easyddl import split_data",
        "assert 'mpi4py.MPI' not in sys.modules",
        "assert 'easyddl._core' not in sys.modules",
        f"others = {{'tensorflow', 'jax', 'torch'}} - {{'{backend}'}}",
        "assert not others & (set(sys.modules) - before)",
        "import mpi4py",
        "mpi4py.rc.initialize = False",
        "from mpi4py import MPI",
        "assert not MPI.Is_initialized()",
        tmp_path=tmp_path,
        KERAS_BACKEND=backend,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_the_stub_of_the_extension(tmp_path):
    done = python(
        "import sys",
        "import mpi4py",
        "mpi4py.rc.initialize = False",
        "import mpi4py.MPI  # loads the MPI that the extension needs",
        "from mypy import stubtest",
        "sys.argv = ['stubtest', 'easyddl._core']",
        "sys.exit(stubtest.main())",
        tmp_path=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
