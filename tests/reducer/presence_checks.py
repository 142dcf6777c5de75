"""Gradients that are there in some steps only, against one process: heads in turn, experts."""

import functools
import warnings

import keras
import numpy as np
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails
from mpi import by_the_root, run_checks
from steps import BACKEND, gradients_of, in_a_graph

import easyddl as ddl
from easyddl.reducer.gradient_reducer import GradientReducer

N = 4  # samples that a rank takes in a step
STEPS = 12
EAGER = BACKEND != "jax"  # there each gradient of a step is traced, and none is absent


class Parts(keras.Model):
    """A model of which a step uses some parts: it has a trunk, two blocks, and two heads.

    Args:
        used: Function of the number of the step and of its samples. It returns the names of the
            parts that are used besides the trunk.
    """

    def __init__(self, used):
        super().__init__(name="parts")  # on the root, which has made more models, too
        self.used, self.number = used, 0
        for name in ("trunk", "block", "drop"):
            setattr(self, name, keras.layers.Dense(5, activation="tanh", name=name))
        for name in ("first", "second"):
            setattr(self, name, keras.layers.Dense(1, name=name))

    def build(self, input_shape):
        self.trunk.build(input_shape)
        for layer in (self.block, self.drop, self.first, self.second):
            layer.build((None, 5))
        super().build(input_shape)

    def call(self, inputs):
        used = self.used(self.number, inputs)
        x = self.trunk(inputs)
        for name in ("block", "drop"):
            x = x + getattr(self, name)(x) if name in used else x
        outputs = [getattr(self, name)(x) for name in ("first", "second") if name in used]
        if self.used is expert and len(outputs) == 2:
            outputs[1] = outputs[1] * keras.ops.cast(inputs[:, :1] > 50, "float32")
        return sum(outputs)

    def train_step(self, data):
        result = super().train_step(data)
        self.number += 1
        return result


def heads_in_turn(number, x):
    return ("block", "first" if number % 2 == 0 else "second")


def dropped_layers(number, x):
    """The same decisions on all ranks."""
    drawn = np.random.default_rng(number).random(2) < 0.5
    return (
        "first",
        *(name for name, is_used in zip(("block", "drop"), drawn, strict=True) if is_used),
    )


def used_later(number, x):
    return ("first", "second") if number >= 5 else ("first",)


def expert(number, x):
    """A head that is used for samples whose first number is large: see `batch_of`."""
    is_symbolic = not hasattr(x, "numpy") if BACKEND == "tensorflow" else x.device.type == "meta"
    is_routed = not is_symbolic and float(keras.ops.max(x[:, 0])) > 50
    return ("first", "second") if is_routed else ("first",)


def batch_of(rank, number):
    """Samples of a rank in a step. The last rank alone has samples of an expert, at times."""
    random = np.random.default_rng([rank, number])
    x = random.standard_normal((N, 6)).astype("float32")
    if rank == SIZE - 1 and number % 3 == 1:
        x[:, 0] = 100
    return x, np.tanh(x[:, 1:].sum(1, keepdims=True))


def batches(steps):
    """All batches of this rank, as arrays."""
    x, y = zip(*(batch_of(RANK, number) for number in range(max(1, steps))), strict=True)
    return np.concatenate(x)[: N * steps], np.concatenate(y)[: N * steps]


def momentum(**more):
    return keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, **more)


def adam(**more):
    return keras.optimizers.Adam(0.02, weight_decay=0.01, **more)


def new_model(used, optimizer):
    model = Parts(used)
    model.build((None, 6))
    random = np.random.default_rng(3)
    model.set_weights([random.standard_normal(w.shape) / 2 for w in model.get_weights()])
    model.compile(optimizer(), "mse", run_eagerly=True)
    return model


def of_one_process(used, optimizer, steps_of):
    """The weights after the steps of one process, whose batches are those of all ranks."""

    def train():
        model = new_model(used, optimizer)
        for number in range(max(steps_of)):
            ranks = [rank for rank in range(SIZE) if number < steps_of[rank]]
            x, y = zip(*(batch_of(rank, number) for rank in ranks), strict=True)
            model.train_on_batch(np.concatenate(x), np.concatenate(y))
        return model.get_weights()

    return by_the_root(train)


def close(model, expected):
    assert_replicas_are_equal(model)
    for variable, want in zip(model.weights, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), want, rtol=0, atol=2e-5, err_msg=variable.path)


def quiet(function):
    """Without what Keras says of gradients that do not exist, and of ranks without batches."""

    @functools.wraps(function)
    def check():
        if EAGER:
            with warnings.catch_warnings():
                for text in ("Gradients do not exist", "Your input ran out of data"):
                    warnings.filterwarnings("ignore", message=text)
                function()

    return check


def assert_fit_equals_one_process(used, optimizer, steps_of=(STEPS,) * SIZE, **arguments):
    model = new_model(used, optimizer)
    x, y = batches(steps_of[RANK])
    arguments = {"batch_size": N, "shuffle": False, "verbose": 0, **arguments}
    model.fit(x, y, callbacks=both(), **arguments)
    close(model, of_one_process(used, optimizer, steps_of))


@quiet
def check_heads_in_turn():
    for optimizer in (momentum, adam):
        assert_fit_equals_one_process(heads_in_turn, optimizer)


@quiet
def check_layers_that_are_dropped():
    for optimizer in (momentum, adam):
        assert_fit_equals_one_process(dropped_layers, optimizer)


@quiet
def check_a_head_that_is_used_later():
    for optimizer in (momentum, adam):
        assert_fit_equals_one_process(used_later, optimizer)


@quiet
def check_an_expert_that_one_rank_uses():
    for optimizer in (momentum, adam):
        assert_fit_equals_one_process(expert, optimizer)


@quiet
def check_steps_that_accumulate():
    for used in (heads_in_turn, dropped_layers, used_later, expert):
        accumulating = functools.partial(adam, gradient_accumulation_steps=3, global_clipnorm=0.3)
        assert_fit_equals_one_process(used, accumulating)


@quiet
def check_ranks_that_have_joined():
    steps_of = [STEPS - 4 * rank for rank in range(SIZE)]
    for used in (heads_in_turn, used_later):
        assert_fit_equals_one_process(used, adam, steps_of)


@quiet
def check_ranks_without_batches():
    steps_of = [STEPS if rank == 0 else 0 for rank in range(SIZE)]
    for used in (heads_in_turn, used_later):
        assert_fit_equals_one_process(used, momentum, steps_of)


@quiet
def check_several_fits_and_small_buckets():
    # The head is used only in the second fit, and every gradient has a bucket of its own.
    model = new_model(used_later, adam)
    x, y = batches(STEPS)
    for first, last in ((0, 4 * N), (4 * N, STEPS * N)):
        model.fit(
            x[first:last],
            y[first:last],
            batch_size=N,
            shuffle=False,
            verbose=0,
            callbacks=both(bucket_bytes=1),
        )
    close(model, of_one_process(used_later, adam, (STEPS,) * SIZE))


@quiet
def check_weights_that_are_zero():
    # The only rank that uses the head has samples that do not count: all ranks do the same.
    model = new_model(expert, adam)
    x, y = batches(STEPS)
    weights = np.full(len(x), 0.0 if RANK == SIZE - 1 else 1.0, "float32")
    model.fit(x, y, sample_weight=weights, batch_size=N, shuffle=False, verbose=0, callbacks=both())
    assert_replicas_are_equal(model)


def check_flags_of_each_dtype_and_weight():
    if not EAGER:
        return
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        ones = keras.ops.ones(3, dtype)
        variables = [keras.Variable(np.zeros(3), dtype=dtype, name=name) for name in ("a", "b")]
        for weight in (0.0, 3.0):  # of the only rank that has a gradient
            average = GradientReducer(weight=lambda w=weight: w if RANK == SIZE - 1 else 1.0)
            for _ in range(2):
                average.mean([ones, ones], variables)
                _, mean = average.mean([ones, ones if RANK == SIZE - 1 else None], variables)
                share = weight / (weight + SIZE - 1) if SIZE > 1 else 1
                mean = keras.ops.convert_to_numpy(keras.ops.cast(mean, "float32"))
                np.testing.assert_allclose(mean, np.full(3, share), rtol=0.01)
                assert average.mean([ones, None], variables)[1] is None
            average.close()


def loop(model, optimizer, batch):
    loss = keras.losses.MeanSquaredError()
    for number in range(STEPS):
        model.number = number
        x, y = batch(number)
        variables = model.trainable_variables
        _, grads = gradients_of(lambda x=x, y=y: loss(y, model(x)), variables)
        optimizer.apply(grads, variables)


@quiet
def check_a_loop_with_a_distributed_optimizer():
    def batch_of_all(number):
        x, y = zip(*(batch_of(rank, number) for rank in range(SIZE)), strict=True)
        return np.concatenate(x), np.concatenate(y)

    def of_one(used, optimizer):
        reference = new_model(used, optimizer)
        loop(reference, optimizer(), batch_of_all)
        return reference.get_weights()

    accumulating = functools.partial(momentum, gradient_accumulation_steps=2)
    for used in (heads_in_turn, used_later, expert):
        for optimizer in (momentum, adam, accumulating):
            model = new_model(used, optimizer)
            loop(model, ddl.DistributedOptimizer(optimizer()), functools.partial(batch_of, RANK))
            close(model, by_the_root(functools.partial(of_one, used, optimizer)))


def check_a_later_trace_that_differs():
    if BACKEND == "torch" or SIZE == 1:
        return  # nothing is traced
    average = GradientReducer()
    variables = [keras.Variable(np.zeros(2, "float32"), name=name) for name in ("one", "two")]
    ones = np.ones(2, "float32")

    def traced(*grads):
        apply = in_a_graph(
            lambda: average.mean([g and keras.ops.ones(2) for g in grads], variables)
        )
        return apply()

    traced(True, True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        means = traced(True, None)
    np.testing.assert_array_equal(means[0], ones)
    np.testing.assert_array_equal(means[1], 0 * ones)
    texts = [str(each.message) for each in caught if "no gradient of 'two'" in str(each.message)]
    assert len(texts) == (RANK == 0), texts
    average.close()
    average = GradientReducer()
    traced(None, True)
    error = fails(lambda: traced(True, True))
    assert isinstance(error, RuntimeError) and "'one' is new" in str(error), error
    average.close()
    COMM.barrier()


if __name__ == "__main__":
    run_checks(globals())
