"""Keras's optimizers, callbacks and layers, one by one, on all ranks."""

import contextlib
import io
import json
import re
from unittest import mock

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


def check_remote_monitor_reports_once():
    with mock.patch("keras.src.callbacks.remote_monitor.requests") as requests:
        history = together(dense(K.SGD(0.1)), keras.callbacks.RemoteMonitor()).history
    # Each rank has a stand-in of its own: what it would have sent shows there.
    sent = [json.loads(call.args[1]["data"]) for call in requests.post.call_args_list]
    assert len(sent) == (EPOCHS if RANK == 0 else 0)
    if RANK == 0:
        losses = [float(each["loss"]) for each in sent]
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
