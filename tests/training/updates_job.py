"""Trains outside of `fit`, in the way that the argument names. Every rank has other data."""

import sys

import keras
import numpy as np

import easyddl as ddl

HOW = sys.argv[1]
BACKEND = keras.backend.backend()

random = np.random.default_rng(ddl.rank())
X = random.standard_normal((8, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def new_model(wrap=lambda optimizer: optimizer):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(wrap(keras.optimizers.SGD(0.1)), "mse")
    return model


def fit(model, *mine):
    callbacks = [ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()]
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks)


def loop_of_tensorflow(reduce):
    import tensorflow as tf

    model = new_model()
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.subtract(model(X), Y) ** 2)
        gradients = reduce(tape.gradient(loss, model.trainable_variables))
        model.optimizer.apply(gradients, model.trainable_variables)


def loop_of_jax(reduce):
    import jax

    model = new_model()
    model.optimizer.build(model.trainable_variables)

    def loss_of(trainable, fixed):
        prediction, _ = model.stateless_call(trainable, fixed, X)
        return keras.ops.mean((prediction - Y) ** 2)

    trainable = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.optimizer.variables]
    for _ in range(2):
        gradients = reduce(jax.grad(loss_of)(trainable, []))
        trainable, state = model.optimizer.stateless_apply(state, gradients, trainable)


def loop_of_torch(reduce, optimizer=None):
    model = new_model()
    parameters = [v.value for v in model.trainable_variables]
    optimizer = optimizer and optimizer(parameters)
    for _ in range(2):
        model.zero_grad()
        keras.ops.mean(keras.ops.subtract(model(X), Y) ** 2).backward()
        gradients = reduce([each.grad for each in parameters])
        if optimizer is None:
            model.optimizer.apply(gradients, model.trainable_variables)
        else:
            for each, gradient in zip(parameters, gradients, strict=True):
                each.grad = gradient
            optimizer.step()


def loop(reduce):
    {"tensorflow": loop_of_tensorflow, "jax": loop_of_jax, "torch": loop_of_torch}[BACKEND](reduce)


def native(reduce):
    import torch

    loop_of_torch(reduce, lambda parameters: torch.optim.SGD(parameters, 0.1))


def reduce_each(gradients):
    return [ddl.allreduce(each) for each in gradients]


def reduce_at_once(gradients):
    flat = keras.ops.concatenate([keras.ops.reshape(each, (-1,)) for each in gradients])
    ends = np.cumsum([int(np.prod(each.shape)) for each in gradients])[:-1].tolist()
    parts = keras.ops.split(ddl.allreduce(flat), ends)
    return [keras.ops.reshape(p, g.shape) for p, g in zip(parts, gradients, strict=True)]


def gather(gradients):
    by_rank = ddl.allgather_object([keras.ops.convert_to_numpy(each) for each in gradients])
    means = [np.mean(each, axis=0) for each in zip(*by_rank, strict=True)]
    return [keras.ops.convert_to_tensor(each) for each in means]


def gather_something_else(gradients):
    ddl.allgather(np.ones(1))
    return gradients


def average(model):
    model.set_weights([ddl.allreduce(each) for each in model.get_weights()])


def compiled_reduction():
    """Only its first call traces it."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(reduce_each)
    if BACKEND == "jax":
        import jax

        return jax.jit(reduce_each)
    return reduce_each


def do_nothing(gradients):
    return gradients


class OnBatch(keras.callbacks.Callback):
    """Trains another model within a fit."""

    def __init__(self):
        super().__init__()
        self.other = new_model()

    def on_epoch_end(self, epoch, logs=None):
        for _ in range(2):
            self.other.train_on_batch(X, Y)


if HOW.startswith("on_batch_times"):
    model = new_model()
    for _ in range(int(HOW.removeprefix("on_batch_times_"))):
        model.train_on_batch(X, Y)
elif HOW == "on_batch_with_other_reductions":
    model = new_model()
    ddl.allreduce(np.array(len(X)), "sum")  # a single number, as the bias of the last layer
    model.set_weights([ddl.allreduce(each) for each in model.get_weights()])
    for _ in range(3):
        loss = model.train_on_batch(X, Y)
        ddl.allreduce(np.array(loss))
elif HOW.startswith("on_batch_averaged"):
    model = new_model()
    for step in range(6 if HOW == "on_batch_averaged_too_early" else 4):
        model.train_on_batch(X, Y)
        if step in (1, 3):
            average(model)
elif HOW == "on_batch_after_a_fit":
    model = new_model()
    fit(model)
    for _ in range(2):
        model.train_on_batch(X, Y)
elif HOW == "on_batch_in_a_callback":
    fit(new_model(), OnBatch())
elif HOW == "on_batch_wrapped":
    model = new_model(ddl.DistributedOptimizer)
    model.train_on_batch(X, Y)
    assert len({each.tobytes() for each in ddl.allgather_object(model.get_weights()[0])}) == 1
elif HOW == "on_batch_wrapped_of_other_weights":
    model = new_model(ddl.DistributedOptimizer)
    model.layers[-1].kernel.assign_add([[0.1 * ddl.rank()], [0.0]])
    model.train_on_batch(X, Y)
    model.train_on_batch(X, Y)
elif HOW == "on_batch_on_the_root":
    model = new_model()
    for _ in range(3 * ddl.is_root()):
        model.train_on_batch(X, Y)
elif HOW == "fit":
    fit(new_model())
elif HOW == "plain_fit":  # it has a warning of its own
    new_model().fit(X, Y, verbose=0)
elif HOW == "fit_with_the_last_callback_alone":
    new_model().fit(X, Y, verbose=0, callbacks=[ddl.DDLGlobalVariablesCallback()])
elif HOW.startswith("native"):
    native({"native": do_nothing, "native_reduced": reduce_each}[HOW])
else:
    loop(
        {
            "loop": do_nothing,
            "each": reduce_each,
            "at_once": reduce_at_once,
            "compiled": compiled_reduction(),
            "gathered": gather,
            "gathered_something_else": gather_something_else,
        }[HOW]
    )
print("done", flush=True)
