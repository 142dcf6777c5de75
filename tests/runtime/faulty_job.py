"""A job in which one rank fails, in the way that the command line says.

Usage: faulty_job.py FAULT VICTIM [busy | before_mpi | backwards | normalized | sparse | uneven]

With `busy` the other ranks compute for long, and wait in no collective. With `backwards` the
victim's backward pass fails half-way; with `normalized` the others wait in theirs then, in a
normalization's, and have sent nothing ahead. With `sparse` the others wait for its rows of a sparse
gradient. With `uneven` a rank has one batch.
"""

import contextlib
import io
import itertools
import os
import signal
import sys
import time

import keras
import numpy as np
from telling import tell

import easyddl as ddl
from easyddl.hosts import launched_process


class Fault(keras.callbacks.Callback):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            FAULTS[self.fault]()


def tell_time():
    tell("fault at", time.time())


def raise_error():
    tell_time()
    raise ValueError("on purpose")


def collected_error():
    """Fails where a later hook collects what is printed, as that of torch.distributed does."""
    before = sys.excepthook

    def hook(*error):
        with contextlib.redirect_stderr(io.StringIO()) as collected:
            before(*error)
        sys.stderr.write(collected.getvalue())

    sys.excepthook = hook
    raise_error()


def system_exit():
    tell_time()
    raise SystemExit(7)


def sys_exit():
    tell_time()
    sys.exit(1)


def kill():
    tell_time()
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    tell_time()
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_at_once():
    tell_time()
    os._exit(5)


def end_early():
    tell_time()
    sys.exit(0)


def nothing():
    tell_time()


_backward_passes = itertools.count(1)


@keras.ops.custom_gradient
def broken_backwards(x):
    """Passes `x` on; its third gradient fails, once those of later layers are on their way."""

    def fail(gradient):
        if next(_backward_passes) == 3:
            tell_time()
            raise ValueError("on purpose")
        return gradient

    def gradient(*arguments, upstream=None):
        if upstream is not None:  # PyTorch
            return fail(upstream)
        (upstream,) = arguments
        if keras.backend.backend() == "jax":
            import jax

            spec = jax.ShapeDtypeStruct(upstream.shape, upstream.dtype)
            return jax.pure_callback(fail, spec, upstream)
        import tensorflow as tf

        result = tf.numpy_function(fail, [upstream], upstream.dtype)
        result.set_shape(upstream.shape)
        return result

    return keras.ops.convert_to_tensor(x) * 1, gradient


def train_broken_model(is_victim, is_normalized=False):
    layers = [keras.layers.Dense(10) for _ in range(4)]
    if is_normalized:
        os.environ["EASYDDL_OVERLAP"] = str(int(is_victim))
        layers.insert(1, ddl.SyncBatchNormalization())
    if is_victim:
        layers.insert(-2, keras.layers.Lambda(broken_backwards))
    x = np.random.default_rng(ddl.rank()).standard_normal((80, 20)).astype("float32")
    model = keras.Sequential([keras.layers.Input((20,)), *layers])
    model.compile("sgd", "mse")
    callbacks = [ddl.DDLCallback(bucket_bytes=1), ddl.DDLGlobalVariablesCallback()]
    model.fit(x, x[:, :10], batch_size=4, epochs=1000, verbose=0, callbacks=callbacks)


FAULTS = {
    function.__name__: function
    for function in (
        raise_error, collected_error, system_exit, sys_exit, kill, crash, exit_at_once, end_early,
        nothing,
    )
}  # fmt: skip


def train(fault):
    x = np.random.default_rng(ddl.rank()).standard_normal((8000, 20)).astype("float32")
    model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(10)])
    model.compile("sgd", "mse")
    mine = [Fault(fault)] if fault else []
    print("training", flush=True)
    callbacks = [ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()]
    model.fit(x, x[:, :10], batch_size=4, epochs=1000, verbose=0, callbacks=callbacks)


def train_sparse(fault):
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(10)]
    if fault == "raise_error":  # when its dense gradients have left
        layers.insert(1, keras.layers.Lambda(broken_backwards))
    x = np.random.default_rng(ddl.rank()).integers(0, 50, (8000, 6))
    model = keras.Sequential([keras.layers.Input((6,), dtype="int32"), *layers])
    model.compile("adam", "mse")
    mine = [Fault(fault)] if fault == "kill" else []
    callbacks = [ddl.DDLCallback(bucket_bytes=1), *mine, ddl.DDLGlobalVariablesCallback()]
    model.fit(x, x[:, :1], batch_size=4, epochs=1000, verbose=0, callbacks=callbacks)


class Collective(keras.callbacks.Callback):
    """Waits for all ranks after each step, also for one that is out of batches."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            tell_time()
        ddl.allreduce(np.ones(3))


def train_uneven(fault, victim):
    """One rank has one batch; another one's data fail when it has waited for a while."""
    import tensorflow as tf

    is_short = ddl.rank() == (victim + 1) % ddl.size()
    signature = (tf.TensorSpec((4, 20), "float32"), tf.TensorSpec((4, 10), "float32"))

    def batches():
        for i in range(1 if is_short else 10**9):
            if i == 20 and ddl.rank() == victim and fault != "collective":
                FAULTS[fault]()
            yield np.ones((4, 20)), np.ones((4, 10))

    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(10)])
    model.compile("sgd", "mse")
    mine = [Collective()] if fault == "collective" else []
    callbacks = [ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()]
    model.fit(data, shuffle=False, verbose=0, callbacks=callbacks)


def main():
    fault, victim, *how = sys.argv[1:]
    if how == ["before_mpi"]:
        if launched_process.rank() == int(victim):
            FAULTS[fault]()
        ddl.barrier()
        time.sleep(60)
    is_victim = ddl.rank() == int(victim)
    if how == ["busy"]:
        ddl.barrier()
        if is_victim:
            FAULTS[fault]()
        time.sleep(60)
    if how == ["uneven"]:
        train_uneven(fault, int(victim))
    if how in (["backwards"], ["normalized"]):
        train_broken_model(is_victim, how == ["normalized"])
    if how == ["sparse"]:
        train_sparse(fault if is_victim else None)
    train(fault if is_victim else None)


if __name__ == "__main__":
    main()
