"""Keras's optimizers, callbacks and layers, one by one, on all ranks."""

import contextlib
import http.server
import io
import json
import re
import threading
import urllib.parse

import keras
import numpy as np
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, in_shared_folder
from mpi import run_checks

import easyddl as ddl

N, STEPS, EPOCHS = 4, 3, 3
K = keras.optimizers

# In float64: some optimizers divide small numbers, which makes much of rounding.
OPTIMIZERS = {
    "SGD": lambda: K.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda: K.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam": lambda: K.Adam(0.01, amsgrad=True, clipnorm=0.5),
    "AdamW": lambda: K.AdamW(0.01, use_ema=True, ema_overwrite_frequency=4),
    "Adadelta": lambda: K.Adadelta(1.0),
    "Adagrad": lambda: K.Adagrad(0.1),
    "Adamax": lambda: K.Adamax(0.01),
    "Adafactor": lambda: K.Adafactor(0.01),
    "Nadam": lambda: K.Nadam(0.01),
    "Ftrl": lambda: K.Ftrl(0.1, l2_regularization_strength=0.01),
    "Lion": lambda: K.Lion(0.01),
    "Lamb": lambda: K.Lamb(0.01),
    "LossScaleOptimizer": lambda: K.LossScaleOptimizer(K.SGD(0.1), initial_scale=4.0),
    # Of later versions of Keras:
    "Muon": lambda: K.Muon(0.01),
    "ScheduleFreeAdamW": lambda: K.ScheduleFreeAdamW(0.01),
    "MultiOptimizer": lambda: K.MultiOptimizer(choose_between(K.SGD(0.1), K.Adam(0.01))),
}


def choose_between(for_kernels, for_biases):
    return lambda variable: for_biases if "bias" in variable.path else for_kernels


NOT_OPTIMIZERS = {"Optimizer", "OptimizerMap"}


def data(count=N * SIZE * STEPS, features=5):
    random = np.random.default_rng(1)
    x = random.standard_normal((count, features))
    return x, np.sin(x.sum(1, keepdims=True))


def dense(optimizer, dtype="float64"):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.layers.Input((5,), dtype=dtype),
            keras.layers.Dense(4, activation="tanh", dtype=dtype),
            keras.layers.Dense(1, dtype=dtype),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def together(model, *callbacks, x=None, y=None, **arguments):
    x, y = data() if x is None else (x, y)
    return model.fit(
        *ddl.split_data(x, y), batch_size=N, epochs=EPOCHS, shuffle=False, verbose=0,
        callbacks=both(*callbacks), **arguments,
    )  # fmt: skip


def alone(model, *callbacks, x=None, y=None, **arguments):
    x, y = data() if x is None else (x, y)
    return model.fit(
        x, y, batch_size=N * SIZE, epochs=EPOCHS, shuffle=False, verbose=0,
        callbacks=list(callbacks), **arguments,
    )  # fmt: skip


def assert_alike(model, expected, rtol=1e-6):
    assert_replicas_are_equal(model)
    for weight, want in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=rtol, atol=rtol)


def check_every_optimizer():
    names = {n for n in dir(K) if isinstance(getattr(K, n), type)} - NOT_OPTIMIZERS
    assert names <= set(OPTIMIZERS), names - set(OPTIMIZERS)
    keras.config.set_floatx("float64")  # else some optimizers mix both
    try:
        assert_optimizers_are_alike(names)
    finally:
        keras.config.set_floatx("float32")


def assert_optimizers_are_alike(names):
    for name in sorted(names):
        model, expected = dense(OPTIMIZERS[name]()), dense(OPTIMIZERS[name]())
        together(model)
        # Keras, left alone, builds it in the first step it traces. ScheduleFreeAdamW then begins
        # anew in every step.
        expected.optimizer.build(expected.trainable_variables)
        alone(expected)
        try:
            assert_alike(model, expected)
        except AssertionError as error:
            raise AssertionError(name) from error


def check_every_callback():
    """Those of Keras that need no test of their own elsewhere; the others are named."""
    elsewhere = {
        "Callback", "CallbackList", "History", "EarlyStopping", "ReduceLROnPlateau",
        "ModelCheckpoint", "CSVLogger", "TensorBoard", "BackupAndRestore", "ProgbarLogger",
        "TerminateOnNaN", "OrbaxCheckpoint",
    }  # fmt: skip
    here = {"LambdaCallback", "LearningRateScheduler", "RemoteMonitor", "SwapEMAWeights"}
    names = {n for n in dir(keras.callbacks) if isinstance(getattr(keras.callbacks, n), type)}
    assert names <= elsewhere | here, names - elsewhere - here


@in_shared_folder
def check_callbacks_print_once_and_end_alike(folder):
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate, verbose=1),
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=10, patience=1, verbose=1),
        keras.callbacks.ModelCheckpoint(
            folder / "best.keras", "loss", save_best_only=True, verbose=1
        ),
        keras.callbacks.EarlyStopping("loss", min_delta=10, patience=2, verbose=1),
    ]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        history = together(dense(K.SGD(0.01)), *callbacks).history
    printed = re.findall(
        "setting learning|reducing learning|saving model|early stopping", text.getvalue()
    )
    assert len(set(printed)) == (4 if RANK == 0 else 0), text.getvalue()
    assert callbacks[2].best == min(history["loss"])
    assert all(callback.verbose == 1 for callback in callbacks)


def check_learning_rate_scheduler_and_lambda_callback():
    def scheduler():
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)

    seen = []
    spy = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"]))
    model, expected = dense(K.SGD(0.4)), dense(K.SGD(0.4))
    history = together(model, scheduler(), spy).history
    wanted = alone(expected, scheduler()).history
    assert_alike(model, expected)
    np.testing.assert_allclose(history["learning_rate"], wanted["learning_rate"])
    assert seen == history["loss"]


def check_swap_ema_weights():
    def make():
        return dense(K.SGD(0.1, use_ema=True, ema_momentum=0.5))

    model, expected = make(), make()
    swap = keras.callbacks.SwapEMAWeights
    history = together(model, swap(swap_on_epoch=True), validation_data=data(9)).history
    wanted = alone(expected, swap(swap_on_epoch=True), validation_data=data(9)).history
    np.testing.assert_allclose(history["val_loss"], wanted["val_loss"], rtol=1e-5)
    assert_alike(model, expected)


class Collector(http.server.BaseHTTPRequestHandler):
    received = []  # noqa: RUF012

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.received.append(json.loads(urllib.parse.parse_qs(body)["data"][0]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def check_remote_monitor_reports_once():
    try:
        import requests  # noqa: F401
    except ImportError:
        return  # Keras needs it for this
    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        root = f"http://127.0.0.1:{server.server_port}"
        history = together(dense(K.SGD(0.1)), keras.callbacks.RemoteMonitor(root)).history
    finally:
        server.shutdown()
        server.server_close()
    # Each rank has a server of its own: what it would have sent shows there.
    assert len(Collector.received) == (EPOCHS if RANK == 0 else 0)
    if RANK == 0:
        losses = [float(each["loss"]) for each in Collector.received]
        np.testing.assert_allclose(losses, history["loss"], rtol=1e-5)


def check_orbax_checkpoint_is_the_roots():
    if not hasattr(keras.callbacks, "OrbaxCheckpoint"):
        return
    from easyddl.callbacks import hooks

    assert keras.callbacks.OrbaxCheckpoint in hooks._WRITERS


def check_lora():
    def make():
        model = dense("sgd", "float32")
        model.layers[0].enable_lora(2)
        model.compile(K.Adam(0.05), "mse")
        return model

    # LoRA's own weights are drawn when it is enabled.
    model, expected = make(), make()
    expected.set_weights(COMM.bcast(model.get_weights()))
    before = model.layers[0]._kernel.numpy()
    together(model)
    alone(expected)
    assert_alike(model, expected, rtol=2e-4)
    np.testing.assert_array_equal(model.layers[0]._kernel.numpy(), before)  # frozen


def check_frozen_layers_and_unused_weights():
    def make():
        model = dense("sgd")
        model.layers[0].trainable = False
        model.compile(K.SGD(0.1), "mse")
        return model

    model, expected = make(), make()
    together(model)
    alone(expected)
    assert_alike(model, expected)


def check_a_subclassed_model_with_several_inputs():
    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = keras.layers.Dense(2), keras.layers.Dense(1)

        def call(self, inputs):
            joined = keras.ops.concatenate([inputs["a"], inputs["b"]], axis=1)
            return self.two(keras.ops.tanh(self.one(joined)))

    def make():
        keras.utils.set_random_seed(3)
        model = Mine()
        model.compile(K.SGD(0.1), "mse")
        return model

    x, y = (array.astype("float32") for array in data())
    inputs = {"a": x[:, :3], "b": x[:, 3:]}
    model, expected = make(), make()
    together(model, x=inputs, y=y)
    alone(expected, x=inputs, y=y)
    assert_alike(model, expected, rtol=1e-5)


def check_adapted_layers_take_the_roots_state():
    # Each rank has adapted to samples of its own: all go on with the root's.
    x = np.random.default_rng(RANK).normal(RANK, 1 + RANK, (50, 5)).astype("float32")
    layer = keras.layers.Normalization()
    layer.adapt(x)
    mean = COMM.bcast(np.asarray(layer.mean))
    model = keras.Sequential([keras.layers.Input((5,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    together(model)
    assert_replicas_are_equal(model)
    found = np.asarray(next(w for w in model.get_weights() if w.shape == (5,)))
    np.testing.assert_allclose(found, mean.reshape(-1), rtol=1e-6)


def check_mixed_precision_skips_on_all_ranks():
    def make():
        keras.utils.set_random_seed(4)
        layer = keras.layers.Dense(1, dtype="mixed_float16")
        model = keras.Sequential([keras.layers.Input((5,)), layer])
        optimizer = K.LossScaleOptimizer(K.SGD(0.01), initial_scale=2.0**10)
        model.compile(optimizer, "mse")
        return model

    x, y = (array.astype("float32") for array in data())
    x[SIZE * N + SIZE - 1] = 6e4  # overflows in the second step, on the last rank alone
    model = make()
    together(model, x=x, y=y)
    assert_replicas_are_equal(model)
    taken = COMM.allgather(int(model.optimizer.inner_optimizer.iterations.numpy()))
    assert taken == [(STEPS - 1) * EPOCHS] * SIZE, taken
    scales = COMM.allgather(float(model.optimizer.dynamic_scale.numpy()))
    assert scales == [2.0**10 / 2**EPOCHS] * SIZE, scales


def check_float8():
    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([
            keras.layers.Input((16,)), keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(16),
        ])  # fmt: skip
        for layer in model.layers:
            layer.quantize("float8")
        model.compile(K.SGD(0.1), "mse")
        return model

    random = np.random.default_rng(6)
    x = random.standard_normal((N * SIZE * STEPS, 16)).astype("float32")
    x *= 1 + np.arange(len(x), dtype="float32")[:, None] % SIZE  # other ranges on each rank
    model, expected = make(), make()
    together(model, x=x, y=np.tanh(x))
    alone(expected, x=x, y=np.tanh(x))
    assert_replicas_are_equal(model)
    for layer, want in zip(model.layers, expected.layers, strict=True):
        np.testing.assert_allclose(
            layer.inputs_amax_history.numpy(), want.inputs_amax_history.numpy(), rtol=0.05
        )
        np.testing.assert_allclose(layer.kernel.numpy(), want.kernel.numpy(), rtol=0.2, atol=0.05)


def check_terminate_on_nan_and_the_bar():
    # Tested in uneven_checks and fit_checks; here that they live beside the others.
    # Warnings are errors here, as everywhere.
    together(dense(K.SGD(0.1)), keras.callbacks.TerminateOnNaN(), ddl.ProgressCallback())


def check_tensor_board_sees_what_all_have():
    @in_shared_folder
    def check(folder):
        board = keras.callbacks.TensorBoard(str(folder / "board"))
        history = together(dense(K.SGD(0.1), "float32"), board, validation_data=data(7)).history
        if RANK > 0:
            return
        import tensorflow as tf
        from tensorboard.compat.proto.event_pb2 import Event

        found = [
            float(tf.make_ndarray(value.tensor))
            for path in sorted((folder / "board" / "validation").iterdir())
            for record in tf.data.TFRecordDataset(str(path))
            for value in Event.FromString(record.numpy()).summary.value
            if value.tag == "epoch_loss"
        ]
        np.testing.assert_allclose(found, history["val_loss"], rtol=1e-5)

    check()


if __name__ == "__main__":
    run_checks(globals())
