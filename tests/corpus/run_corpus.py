"""Runs scripts of the corpus one after the other, in one process or on the ranks of one job.

Usage: run_corpus.py alone|ranks FOLDER SCRIPT...

For each script SCRIPT the process of rank R leaves in the folder SCRIPT.R.json, with its histories
or its error, and SCRIPT.R.npz, with the variables of its models and optimizers. Importing Keras
takes seconds, hence many scripts in a process.
"""

import importlib.util
import json
import pathlib
import sys
import traceback

import keras
import mpi
import numpy as np

SEED = 100


def values(variables):
    return [np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in variables]


def state_of(model):
    """The variables of a model and its optimizers, by names that tell them apart."""
    attributes = [value for name, value in vars(model).items() if not name.startswith("__")]
    optimizers = {id(v): v for v in attributes if isinstance(v, keras.optimizers.Optimizer)}
    kinds = {"weight": model.weights}
    for number, optimizer in enumerate(optimizers.values()):
        kinds[f"optimizer {number}"] = optimizer.variables
    state = {}
    for kind, variables in kinds.items():
        for number, (variable, value) in enumerate(zip(variables, values(variables), strict=True)):
            path = variable.path.replace("/", ".")  # of an archive's members
            state[f"{kind} {number:03} {path}"] = value
    return state


def logs_of(history):
    """The numbers by name of what `fit` has returned, or of a dict of a script's own."""
    return history if isinstance(history, dict) else history.history


def run(script, rank):
    """Runs a script; returns what it left."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED + rank)
    spec = importlib.util.spec_from_file_location(f"corpus_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        histories = module.history if isinstance(module.history, list) else [module.history]
        models = getattr(module, "models", None) or [module.model]
        state = {
            f"model {number}, {name}": value
            for number, model in enumerate(models)
            for name, value in state_of(model).items()
        }
        logs = [
            {name: np.asarray(value, "float64").tolist() for name, value in logs_of(each).items()}
            for each in histories
        ]
    finally:
        del sys.modules[spec.name]
    return {"histories": logs}, state


def leave(folder, script, rank):
    """Runs a script and writes what it left; returns whether it failed."""
    result, state = {"error": None}, {}
    try:
        left, state = run(script, rank)
        result.update(left)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    mpi.destroy_what_is_left()
    np.savez(folder / f"{script.stem}.{rank}.npz", **state)
    (folder / f"{script.stem}.{rank}.json").write_text(json.dumps(result))
    return result["error"] is not None


def main(where, folder, *scripts):
    folder, scripts = pathlib.Path(folder), [pathlib.Path(script) for script in scripts]
    if where == "alone":
        for script in scripts:
            leave(folder, script, 0)
        return
    import easyddl as ddl

    ddl.init()
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    for script in scripts:
        failed = leave(folder, script, world.rank)
        # What a failure has left behind is no other script's concern: it gets a job of its own.
        if world.allreduce(failed, MPI.LOR):
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
