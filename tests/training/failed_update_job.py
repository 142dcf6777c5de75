"""Updates of a `DistributedOptimizer` fail after their gradients were averaged.

The first fails on all ranks, and their collectives go on. A later one fails on rank 1 alone, and
its weights remain as they were.
"""

import keras
import numpy as np

import easyddl as ddl

RANK = ddl.rank()


class Failing(keras.optimizers.SGD):
    fails = False

    def update_step(self, *arguments):
        if self.fails:
            raise TimeoutError("the alarm of this rank")
        super().update_step(*arguments)


def step(fails):
    """One update; returns the error that it raised, or `None`."""
    optimizer, variable = ddl.DistributedOptimizer(Failing(1.0)), keras.Variable(np.zeros(2))
    optimizer.build([variable])
    optimizer.fails = fails
    try:
        optimizer.apply([keras.ops.convert_to_tensor(np.ones(2, "float32"))], [variable])
    except TimeoutError as error:
        return error
    return None


def gathered():
    """What the script's next collective returns, or raises."""
    try:
        return ddl.allgather_object(RANK)
    except RuntimeError as error:
        return str(error)


if __name__ == "__main__":
    assert isinstance(step(fails=True), TimeoutError)
    assert gathered() == list(range(ddl.size()))
    assert step(fails=False) is None
    assert gathered() == list(range(ddl.size()))
    assert isinstance(step(fails=RANK == 1), TimeoutError if RANK == 1 else type(None))
    for _ in range(2):
        told = gathered()
        assert "The ranks disagree" in told, told
        assert "updates 1, 3 of optimizers failed there" in told, told
    print("all ranks have heard", flush=True)
