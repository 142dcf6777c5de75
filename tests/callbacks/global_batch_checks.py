"""What is said of large batches, on every rank of one job of two."""

import contextlib
import io

import keras
import numpy as np
import tensorflow as tf
from mpi import run_checks

import easyddl as ddl
from easyddl.runtime import notices

HALF = 8192 // 2


def told(*args, optimizer=None, again=False, **arguments):
    """What a fit says, in a process that has not said it before; or that has."""
    if not again:
        notices._told.clear()
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer or "sgd", "mse")
    first = ddl.DDLCallback()
    with contextlib.redirect_stderr(io.StringIO()) as error:
        model.fit(
            *args,
            verbose=0,
            shuffle=False,
            callbacks=[first, ddl.DDLGlobalVariablesCallback()],
            **arguments,
        )
        assert "on_train_batch_end" not in vars(first)
    return error.getvalue()


def samples(count):
    """Samples of this rank's own, as the same on all ranks would be told."""
    values = np.full((count, 1), 1.0 + ddl.rank(), "float32")
    return values, values[:, 0]


def dataset(count, batch):
    return tf.data.Dataset.from_tensor_slices(samples(count)).batch(batch)


def assert_told(text, total, each):
    if ddl.is_root():
        assert text.startswith(f"easyddl: warning: an update takes {total} samples ({each} on")
        assert text.count("\n") == 1, text
    else:
        assert text == "", text


def check_arrays():
    assert told(*samples(2 * HALF), batch_size=HALF) == ""
    text = told(*samples(2 * HALF + 5), batch_size=HALF + 1, epochs=2)
    assert_told(text, 2 * HALF + 2, HALF + 1)
    assert "fewer ranks" in text or not ddl.is_root()


def check_data_sets():
    assert told(dataset(2 * HALF, HALF)) == ""
    assert_told(told(dataset(2 * HALF, HALF + 1)), 2 * HALF + 2, HALF + 1)


def check_accumulation():
    def optimizer(steps):
        return keras.optimizers.SGD(0.01, gradient_accumulation_steps=steps)

    assert told(*samples(HALF), batch_size=HALF // 2, optimizer=optimizer(2)) == ""
    text = told(*samples(3 * HALF), batch_size=HALF // 2, optimizer=optimizer(3))
    assert_told(text, 3 * HALF, HALF // 2)
    assert "in each of the 3 steps" in text or not ddl.is_root()
    scaled = keras.optimizers.LossScaleOptimizer(optimizer(3))
    assert_told(
        told(*samples(3 * HALF), batch_size=HALF // 2, optimizer=scaled), 3 * HALF, HALF // 2
    )


def check_once_a_process():
    assert told(*samples(HALF + 1), batch_size=HALF + 1, again=True) == ""


def check_a_fit_that_takes_no_step():
    assert told(*samples(8), epochs=1, initial_epoch=1) == ""


if __name__ == "__main__":
    run_checks(globals())
