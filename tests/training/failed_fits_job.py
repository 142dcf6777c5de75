"""Rank 1's data raise an error in `fit`, which the ranks that the argument names catch.

Usage: failed_fits_job.py [RANK ...]
"""

import sys

import keras
import numpy as np

import easyddl as ddl

CATCHING = [int(each) for each in sys.argv[1:]]


class Data(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if (ddl.rank(), index) == (1, 1):
            raise OSError("no such image")
        numbers = np.random.default_rng([ddl.rank(), index])
        return numbers.standard_normal((4, 3)).astype("float32"), np.ones((4, 1), "float32")


def fit():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    model.fit(Data(workers=1), callbacks=callbacks, verbose=0)


def tell(text):
    """Prints a line in one piece, into which the other rank cannot write."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        fit()
    except Exception as error:
        if ddl.rank() not in CATCHING:
            raise
        tell(f"rank {ddl.rank()} has caught {type(error).__name__}")
    tell(f"scores {ddl.allgather_object(ddl.rank())}")
