"""Runs a script as `python` does, then prints whether all ranks' `model` is the same.

    replicas_of.py [--without-reduction] SCRIPT [ARGUMENT ...]

The comparison is MPI's own: hashes of the weights' bytes, not what easyddl says. The `scores` of a
script that searches for hyper-parameters are compared too.
"""

import hashlib
import runpy
import sys
import warnings

import keras

import easyddl as ddl

arguments = sys.argv[1:]
if arguments[0] == "--without-reduction":
    ddl.DDLCallback = keras.callbacks.Callback
    arguments = arguments[1:]

sys.argv = arguments
warnings.simplefilter("error")
# Keras on NumPy 2: its tensors' __array__ knows no `copy`.
warnings.filterwarnings("ignore", message=".*__array__.*copy.*")
# KerasTuner 1.4: names that are deprecated, and checkpoints without the slots of the optimizer.
warnings.filterwarnings("ignore", module=r"keras_tuner\.")
warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
names = runpy.run_path(arguments[0], run_name="__main__")

digest = hashlib.sha256()
for weight in names["model"].get_weights():
    digest.update(weight.tobytes())
digest.update(repr(names.get("scores")).encode())

from mpi4py import MPI  # noqa: E402 - after the script, which decides when MPI starts

if not MPI.Is_initialized():
    sys.exit("The script has not started MPI: it cannot have trained with other ranks.")
digests = MPI.COMM_WORLD.allgather(digest.hexdigest())
if MPI.COMM_WORLD.rank == 0:
    print(f"Replicas: {len(digests)}, different ones: {len(set(digests))}", flush=True)
