"""k ranks that take n samples a step end with the weights of one process that takes k * n."""

import contextlib
import functools

import keras
import numpy as np
from mpi import by_the_root, run_checks
from mpi4py import MPI
from steps import BACKEND, gradients_of

import easyddl as ddl
from easyddl.reducer.gradient_reducer import GradientReducer

N = 4  # samples a rank takes in a step
STEPS = 20
COMM = MPI.COMM_WORLD
CLASSES = 5


def dense():
    return keras.Sequential(
        [
            keras.layers.Input((6, 6, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(CLASSES),
        ]
    )


def convnet():
    return keras.Sequential(
        [
            keras.layers.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="tanh"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )


def samples():
    random = np.random.default_rng(7)
    count = N * ddl.size() * STEPS
    x = random.standard_normal((count, 6, 6, 1)).astype("float32")
    y = (x.sum((1, 2, 3)) > 0).astype("int64") + 2 * (x[:, 0, 0, 0] > 0)
    return x, y


def compiled(model, optimizer):
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train_on_all_ranks(build, optimizer, **arguments):
    """The model after a distributed fit, the root's first weights, and the history."""
    keras.utils.set_random_seed(100 + COMM.rank)
    model = compiled(build(), optimizer())
    first = COMM.bcast(model.get_weights())
    x, y = ddl.split_data(*samples())
    history = model.fit(
        x,
        y,
        batch_size=N,
        shuffle=False,
        verbose=0,
        callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()],
        **arguments,
    )
    return model.get_weights(), first, history.history


def train_on_one(build, optimizer, first, **arguments):
    """The same by Keras alone."""
    model = compiled(build(), optimizer())
    model.set_weights(first)
    x, y = samples()

    def train():
        history = model.fit(x, y, batch_size=N * COMM.size, shuffle=False, verbose=0, **arguments)
        return model.get_weights(), history.history

    return by_the_root(train)


def assert_bits_are_equal(weights):
    everyone = COMM.allgather([weight.tobytes() for weight in weights])
    assert all(theirs == everyone[0] for theirs in everyone)


def difference(weights, expected):
    """The largest difference over the largest weight, of the tensor where that is largest."""
    return max(
        np.abs(weight - want).max() / np.abs(want).max()
        for weight, want in zip(weights, expected, strict=True)
    )


def assert_equal_to_one_process(build, optimizer, **arguments):
    weights, first, history = train_on_all_ranks(build, optimizer, **arguments)
    expected, expected_history = train_on_one(build, optimizer, first, **arguments)
    assert_bits_are_equal(weights)
    assert difference(first, expected) > 1e-2, "training must have moved the weights"
    assert difference(weights, expected) <= 1e-5, difference(weights, expected)
    assert COMM.allgather(history) == [history] * COMM.size
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(history[name], expected_history[name], rtol=1e-5)


def sgd(**clip):
    return lambda: keras.optimizers.SGD(0.1, momentum=0.9, **clip)


def adam(**clip):
    return lambda: keras.optimizers.Adam(0.01, **clip)


def check_dense_sgd():
    assert_equal_to_one_process(dense, sgd())


def check_dense_sgd_global_clipnorm():
    assert_equal_to_one_process(dense, sgd(global_clipnorm=0.2))


def check_convnet_adam_clipnorm():
    assert_equal_to_one_process(convnet, adam(clipnorm=0.1))


def check_dense_adam_accumulating():
    assert_equal_to_one_process(dense, adam(gradient_accumulation_steps=4, clipnorm=0.1))


def check_class_weight():
    weight = {0: 0.2, 1: 3.0, 2: 1.0, 3: 0.5}
    assert_equal_to_one_process(dense, sgd(), class_weight=weight)


def with_small_momenta():
    """A model whose momenta are close above the smallest normal number."""
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    for momentum in model.optimizer.momentums:
        momentum.assign(np.full(momentum.shape, 1.2e-38, "float32"))
    return model


def momenta_after_a_step(model, x, y, **arguments):
    """Their bytes after a step whose gradients are zero, so that it halves the momenta."""
    model.fit(x, y, batch_size=len(x), verbose=0, **arguments)
    return [keras.ops.convert_to_numpy(each).tobytes() for each in model.optimizer.momentums]


def check_momenta_become_subnormal():
    x, y = np.zeros((N * COMM.size, 3), "float32"), np.zeros((N * COMM.size, 2), "float32")
    model, alone = with_small_momenta(), with_small_momenta()
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    momenta = momenta_after_a_step(model, *ddl.split_data(x, y), callbacks=callbacks)
    # TensorFlow and XLA take subnormal numbers as zero. PyTorch keeps them.
    expected = by_the_root(momenta_after_a_step, alone, x, y)
    assert COMM.allgather(momenta) == [expected] * COMM.size, (momenta, expected)


@contextlib.contextmanager
def reduction_switched_off():
    mean = GradientReducer.mean
    GradientReducer.mean = lambda self, grads, variables: grads
    try:
        yield
    finally:
        GradientReducer.mean = mean


def check_without_reduction_it_fails():
    with reduction_switched_off():
        weights, first, _ = train_on_all_ranks(dense, sgd())
    expected, _ = train_on_one(dense, sgd(), first)
    if COMM.size > 1:
        assert difference(weights, expected) > 1e-3
    keras.backend.clear_session()


def check_custom_loop_in_eager_mode():
    assert_custom_loop_is_equal(lambda function: function)


def check_custom_loop_in_a_graph():
    if BACKEND == "tensorflow":
        import tensorflow as tf

        assert_custom_loop_is_equal(tf.function)
    if BACKEND == "jax":
        assert_custom_loop_is_equal(None, train_by_pure_functions)


def check_custom_loop_compiled_by_xla():
    if BACKEND == "tensorflow":
        import tensorflow as tf

        assert_custom_loop_is_equal(functools.partial(tf.function, jit_compile=True))


def train_by_pure_functions(model, optimizer, x, y, size):
    """A loop as JAX has it: its step is a function of the values of variables."""
    import jax

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss_of(weights, x, y):
        return loss(y, model.stateless_call(weights, [], x)[0])

    @jax.jit
    def step(weights, state, x, y):
        return optimizer.stateless_apply(state, jax.grad(loss_of)(weights, x, y), weights)

    optimizer.build(model.trainable_variables)
    weights = [variable.value for variable in model.trainable_variables]
    state = [variable.value for variable in optimizer.variables]
    for begin in range(0, len(x), size):
        weights, state = step(weights, state, x[begin : begin + size], y[begin : begin + size])
    return [np.asarray(weight) for weight in weights]


def assert_custom_loop_is_equal(wrap, train=None):
    def train_by_variables(model, optimizer, x, y, size):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def step(x, y):
            variables = model.trainable_variables
            _, found = gradients_of(lambda: loss(y, model(x, training=True)), variables)
            optimizer.apply_gradients(zip(found, variables, strict=True))

        step = wrap(step)
        for begin in range(0, len(x), size):
            batch = (each[begin : begin + size] for each in (x, y))
            step(*map(keras.ops.convert_to_tensor, batch))
        return model.get_weights()

    train = train or train_by_variables
    keras.utils.set_random_seed(200 + COMM.rank)
    model = dense()
    first = COMM.bcast(model.get_weights())
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    optimizer.build(model.trainable_variables)
    ddl.broadcast_variables(model.weights + optimizer.variables)
    x, y = samples()
    weights = train(model, optimizer, *ddl.split_data(x, y), N)
    alone = dense()
    alone.set_weights(first)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    expected = by_the_root(train, alone, optimizer, x, y, N * COMM.size)
    assert_bits_are_equal(weights)
    assert difference(weights, expected) <= 1e-5, difference(weights, expected)


if __name__ == "__main__":
    run_checks(globals())
