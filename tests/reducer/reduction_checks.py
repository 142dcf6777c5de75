"""Gradients on their way over the ranks: what is reduced, when, and what it leaves behind."""

import contextlib
import os
import pathlib
import random
import threading
import time
import warnings

import keras
import numpy as np
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, data, fails, fit, new_model
from keras import ops
from line_errors import LineErrors, outcome, renew_communicator
from mpi import run_checks
from ranks import numpy_dtype
from steps import BACKEND, TAKES_SEVERAL_STEPS, compiled, gradients_of, in_a_graph, stateful

import easyddl as ddl
from easyddl.reducer import gradient_reducer
from easyddl.reducer.gradient_reducer import GradientReducer
from easyddl.reducer.reduction_options import ReductionOptions

SIZES = [0, 1, 2, 7, 1021, 65537]  # of variables, in elements


def mine(size, dtype="float32", seed=0):
    """This rank's gradient: quarters, whose sums are exact."""
    return gradient_of(RANK, size, dtype, seed)


def gradient_of(rank, size, dtype="float32", seed=0):
    return (np.random.default_rng([seed, rank, size]).integers(-9, 10, size) / 4).astype(dtype)


def mean_of(size, dtype="float32", seed=0):
    """What NumPy makes of all ranks' gradients."""
    all_ranks = [gradient_of(rank, size, "float32", seed) for rank in range(SIZE)]
    return (np.sum(all_ranks, axis=0, dtype="float32") / np.float32(SIZE)).astype(dtype)


def tensor(array):
    """An array, or a number, as a tensor of its dtype."""
    return ops.convert_to_tensor(array, dtype=np.asarray(array).dtype.name)


def new_variables(sizes=SIZES):
    return [keras.Variable(np.zeros(n, "float32"), name=f"v{n}") for n in sizes]


def distributed(**arguments):
    """An optimizer that subtracts the mean gradient."""
    return ddl.DistributedOptimizer(keras.optimizers.SGD(1.0), **arguments)


def apply_in_a_graph(optimizer, variables, make_gradients):
    """Applies what a function of the step returns, in a step that is traced once."""

    @in_a_graph
    def step(number):
        optimizer.apply(make_gradients(number), variables)

    return step


def assert_applied(variables, seeds=(0,)):
    for variable in variables:
        want = -sum(mean_of(variable.shape[0], seed=seed).astype("float64") for seed in seeds)
        np.testing.assert_allclose(variable.numpy(), want, rtol=1e-5, atol=1e-6)
    everyone = COMM.allgather([variable.numpy().tobytes() for variable in variables])
    assert all(theirs == everyone[0] for theirs in everyone)


def check_buckets_of_every_size():
    for bucket_bytes in (1, 100, 5000, 10**9):
        variables = new_variables()
        optimizer = distributed(bucket_bytes=bucket_bytes)
        tables = [tensor(np.stack([mine(n, seed=s) for s in range(3)])) for n in SIZES]
        step = apply_in_a_graph(optimizer, variables, lambda i, t=tables: [x[i] for x in t])
        for number in range(3):
            step(tensor(number))
        assert_applied(variables, seeds=range(3))


def check_gradients_that_follow_from_one_another():
    # In both directions, a bucket each: an order among them that TensorFlow is given must not
    # make one wait for another that follows from it.
    for places in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0)):
        variables = [keras.Variable(np.zeros(7, "float32")) for _ in range(5)]

        def make(number, places=places):
            gradients, last_made = [None] * 5, tensor(mine(7))
            for place in places:
                last_made = gradients[place] = last_made * 2.0
            return gradients

        apply_in_a_graph(distributed(bucket_bytes=1), variables, make)(0)
        for power, place in enumerate(places, start=1):
            want = -mean_of(7) * 2**power
            np.testing.assert_allclose(variables[place].numpy(), want, rtol=1e-5)


def check_the_velocity_rises_with_the_rate():
    optimizer = keras.optimizers.SGD(ddl.LearningRateWarmup(0.1, 3), momentum=0.9)
    variables = new_variables([7])
    table = tensor(np.stack([mine(7, seed=seed) for seed in range(6)]))
    optimizer = ddl.DistributedOptimizer(optimizer)
    step = apply_in_a_graph(optimizer, variables, lambda number: [table[number]])
    # As papers have it: the rate stays outside of the velocity.
    velocity, weight = np.zeros(7), np.zeros(7)
    for number in range(6):
        step(tensor(number))
        velocity = 0.9 * velocity + mean_of(7, seed=number)
        weight -= 0.1 * (1 + (SIZE - 1) * min(1, number / 3)) * velocity
    np.testing.assert_allclose(variables[0].numpy(), weight, rtol=1e-4, atol=1e-6)


def check_a_fit_takes_its_hooks_off_again():
    model = new_model()
    model.compile(keras.optimizers.SGD(ddl.LearningRateWarmup(0.01, 3), momentum=0.9), "mse")
    hooked = []
    see = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: hooked.append("_backend_update_step" in vars(model.optimizer))
    )
    fit(model, see)
    assert hooked == [True]
    assert not {"apply", "_backend_update_step"} & set(vars(model.optimizer))


def check_eager_mode():
    for bucket_bytes in (1, 10**9):
        variables = new_variables()
        optimizer = distributed(bucket_bytes=bucket_bytes)
        for seed in range(3):
            optimizer.apply([tensor(mine(n, seed=seed)) for n in SIZES], variables)
        assert_applied(variables, seeds=range(3))


def check_half_precision_is_summed_in_single():
    for dtype in ("float16", "bfloat16"):
        size = 3001
        variable = keras.Variable(np.zeros(size, "float32"), dtype="float32", name="v")
        gradient = ops.cast(tensor(mine(size) * np.float32(1000)), dtype)
        average = GradientReducer()
        [mean] = average.mean([gradient], [variable])
        assert mean.dtype == gradient.dtype
        half = numpy_dtype(dtype)
        parts = [(gradient_of(rank, size) * 1000).astype(half) for rank in range(SIZE)]
        total = np.sum([part.astype("float32") for part in parts], axis=0, dtype="float32")
        want = (total / np.float32(SIZE)).astype(half)
        np.testing.assert_array_equal(ops.convert_to_numpy(mean), want)
        average.close()


def check_sixteen_bits_between_hosts():
    for wire_dtype, precision in (("bfloat16", 8), ("float16", 11)):
        variables = new_variables()
        apply_in_a_graph(
            distributed(wire_dtype=wire_dtype),
            variables,
            lambda _: [tensor(mine(n)) for n in SIZES],
        )(0)
        assert_applied(variables)  # quarters stay the same
        assert_means_are_rounded(wire_dtype, precision)


def assert_means_are_rounded(wire_dtype, precision):
    """Means of ranks of different weights, and of numbers that have more bits."""
    everyones = [np.random.default_rng(rank).normal(size=5003) for rank in range(SIZE)]
    weights = np.float32([257 + 90 * rank for rank in range(SIZE)])
    weight = tensor(weights[RANK])
    average = GradientReducer(ReductionOptions(wire_dtype=wire_dtype), weight=lambda: weight)
    [variable] = new_variables([5003])
    [mean] = average.mean([tensor(everyones[RANK].astype("float32"))], [variable])
    mean = ops.convert_to_numpy(mean)
    error = np.abs(mean - np.average(everyones, axis=0, weights=weights))
    magnitude = np.average(np.abs(everyones), axis=0, weights=weights)
    bound = (ddl.num_nodes() + 1) * 2.0**-precision if ddl.num_nodes() > 1 else 1e-6
    assert np.all(error <= bound * magnitude + 1e-6), np.max(error / magnitude)
    assert ddl.num_nodes() == 1 or np.max(error) > 2.0 ** (-precision - 4)
    assert len(set(COMM.allgather(mean.tobytes()))) == 1
    average.close()


def check_several_dtypes_at_once():
    # JAX has no float64 unless it is told to.
    third = "bfloat16" if BACKEND == "jax" else "float64"
    kinds = ["float32", "float16", third, "float32", "float16"]
    variables = [keras.Variable(np.zeros(50, kind), dtype=kind, name=kind) for kind in kinds]
    average = GradientReducer(ReductionOptions(bucket_bytes=100))
    values = [tensor(mine(50, kind, seed)) for seed, kind in enumerate(kinds)]
    means = compiled(lambda: average.mean(values, variables))()
    for seed, (kind, mean) in enumerate(zip(kinds, means, strict=True)):
        assert keras.backend.standardize_dtype(mean.dtype) == kind
        mean = ops.convert_to_numpy(mean).astype("float64")
        tolerance = 1e-2 if kind == "bfloat16" else 1e-3
        np.testing.assert_allclose(mean, mean_of(50, "float64", seed), rtol=tolerance)
    average.close()


def check_constant_gradients():
    variables = new_variables()
    constants = [tensor(mine(n)) for n in SIZES]
    step = apply_in_a_graph(distributed(bucket_bytes=1), variables, lambda i: constants)
    step(0)
    step(0)
    assert_applied(variables, seeds=(0, 0))


def check_gradients_that_nobody_uses():
    before = gradient_reducer.reduced_steps()
    variables = new_variables([3, 4, 5])
    average = GradientReducer(ReductionOptions(bucket_bytes=1))

    @compiled
    def step():
        return average.mean([tensor(mine(n)) for n in (3, 4, 5)], variables)[1]

    for _ in range(3):
        np.testing.assert_allclose(step(), mean_of(4))
    assert gradient_reducer.reduced_steps() - before == (3 if SIZE > 1 else 0)
    average.close()


def check_gradients_that_are_absent_everywhere():
    variables = new_variables([3, 4, 5])
    average = GradientReducer(ReductionOptions(bucket_bytes=1))
    means = average.mean([None, tensor(mine(4)), None], variables)
    assert means[0] is None and means[2] is None
    np.testing.assert_allclose(means[1], mean_of(4))
    assert average.mean([None, None], variables[:2]) == [None, None]
    average.close()


def check_gradients_that_some_ranks_lack():
    variables = new_variables([3, 4])
    average = GradientReducer(ReductionOptions(bucket_bytes=1))
    lacking = RANK == SIZE - 1 and SIZE > 1

    @compiled
    def step():
        return average.mean([None if lacking else ops.ones(3), tensor(mine(4))], variables)

    means = step()
    share = (SIZE - 1) / SIZE if SIZE > 1 else 1
    np.testing.assert_allclose(means[0], np.full(3, share), rtol=1e-6)
    np.testing.assert_allclose(means[1], mean_of(4))
    average.close()


def check_gradients_that_come_later():
    if SIZE == 1:
        return
    variables = new_variables([3, 4])
    average = GradientReducer()
    average.mean([None, ops.ones(4)], variables)
    grads = [ops.ones(3) if RANK == 0 else None, ops.ones(4)]
    if BACKEND == "jax":  # the presence of gradients is that of the first trace
        error = fails(lambda: average.mean([ops.ones(3), ops.ones(4)], variables))
        assert isinstance(error, RuntimeError) and "'v3' is new" in str(error), error
    else:
        means = average.mean(grads, variables)
        np.testing.assert_allclose(means[0], np.full(3, 1 / SIZE), rtol=1e-6)
        np.testing.assert_array_equal(means[1], np.ones(4))
        assert average.mean([None, ops.ones(4)], variables)[0] is None
    average.close()


def check_one_rank_alone_traces_again():
    if BACKEND == "torch":
        return  # nothing is traced
    average = GradientReducer(ReductionOptions(bucket_bytes=1))
    variables = new_variables([3])
    traces = []

    @compiled
    def step(batch):
        traces.append(batch.shape)
        return average.mean([tensor(mine(3)) * ops.mean(batch)], variables)

    for length in [8, 8, 5 if RANK == 0 else 8, 8]:  # a shorter batch, on rank 0
        [mean] = step(ops.ones(length))
        np.testing.assert_allclose(mean, mean_of(3), rtol=1e-6)
    counts = COMM.allgather(len(traces))
    assert all(counts[0] > count for count in counts[1:]), counts
    average.close()


class Gan(keras.Model):
    """Two networks with an optimizer each, both updated in one step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(2)

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second.build(input_shape)

    def call(self, x):
        return self.first(x)

    @stateful
    def train_step(self, batch):
        x, _ = batch
        losses = []
        for part, is_slow in ((self.first, RANK % 2 == 0), (self.second, RANK % 2 == 1)):
            variables = part.trainable_variables
            loss, found = gradients_of(
                lambda part=part, slow=is_slow: ops.mean(part(self.slow(x, slow)) ** 2), variables
            )
            losses.append(loss)
            part.optimizer.apply(found, variables)
        self.optimizer.iterations.assign_add(1)
        return {"loss": sum(losses)}

    def slow(self, x, is_slow):
        """Delays one network, another one on each rank, so that the ranks' orders differ."""
        if not is_slow:
            return x
        if BACKEND != "tensorflow":
            time.sleep(0.05)
            return x
        import tensorflow as tf

        def wait(value):
            time.sleep(0.05)
            return value

        waited = tf.numpy_function(wait, [x], x.dtype)
        waited.set_shape(x.shape)
        return waited


def check_two_optimizers_in_one_step():
    keras.utils.set_random_seed(RANK)
    model = Gan()
    model.build((None, 6))
    model.compile("sgd", run_eagerly=BACKEND == "jax")
    for part in (model.first, model.second):
        part.optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(0.01))
    before = gradient_reducer.reduced_steps()
    fit(model, steps=5)
    assert gradient_reducer.reduced_steps() - before == (10 if SIZE > 1 else 0)
    assert_replicas_are_equal(model)


def check_several_models_in_turn_and_together():
    keras.utils.set_random_seed(RANK)
    models = [new_model(optimizer="adam") for _ in range(2)]
    for _ in range(2):
        for model in models:
            fit(model)

    class TrainAnother(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            fit(models[1])

    fit(models[0], TrainAnother(), epochs=2)
    for model in models:
        assert_replicas_are_equal(model)


def check_collectives_in_a_callback():
    class Collect(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            Collect.seen += ddl.allreduce(RANK + batch, "sum")

    keras.utils.set_random_seed(RANK)
    model = new_model()
    fit(model, Collect(), steps=4)
    assert Collect.seen == 4 * sum(range(SIZE)) + SIZE * sum(range(4))
    assert_replicas_are_equal(model)


def check_a_callback_that_reduces_from_a_thread():
    # A thread of the user's own, in a collective while the main thread trains.
    class InAThread(ddl.DDLCallback):
        async_safe = False  # Keras calls it in the main thread

        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch, logs)
            if batch == 1:
                self.results = []
                self.thread = threading.Thread(target=self.work)
                self.loan = ddl.collectives_in(self.thread)
                self.loan.__enter__()
                self.thread.start()
                time.sleep(0.2 * (RANK % 2))

        def work(self):
            for number in range(20):
                self.results.append(ddl.allreduce(RANK + number, "sum"))

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if batch == 6:  # before the main thread averages the logs
                self.loan.__exit__(None, None, None)

    first = InAThread()
    model = new_model()
    x, y = data(12)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[first, ddl.DDLGlobalVariablesCallback()])
    assert first.results == [sum(range(SIZE)) + SIZE * number for number in range(20)]
    assert_replicas_are_equal(model)


def check_a_fit_in_a_thread():
    model, errors = new_model(), []

    def train():
        time.sleep(0.1)  # until the main thread of even ranks waits for this one
        try:
            fit(model, steps=4)
        except Exception as error:
            errors.append(error)

    for is_lent in (True, False):
        thread = threading.Thread(target=train, name="training")
        with ddl.collectives_in(thread) if is_lent else contextlib.nullcontext():
            thread.start()
            time.sleep(0.5 * (RANK % 2))
        thread.join()
        if is_lent or SIZE == 1:
            assert not errors, errors
            assert_replicas_are_equal(model)
    if SIZE > 1:
        assert "the thread 'training' called" in str(errors[0]), errors
        assert "ddl.collectives_in(thread)" in str(fails(ddl.barrier))
        renew_communicator()


def check_accumulation_reduces_once_an_update():
    # On JAX Keras computes an update in every step, and drops those that are not due.
    updates = 6 if BACKEND == "jax" else 2
    for steps_per_execution in (1, 3) if TAKES_SEVERAL_STEPS else (1,):
        before = gradient_reducer.reduced_steps()
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        model = new_model(optimizer=optimizer, steps_per_execution=steps_per_execution)
        fit(model, steps=6)
        assert gradient_reducer.reduced_steps() - before == (updates if SIZE > 1 else 0)
        assert_replicas_are_equal(model)


def check_bucket_bytes_must_be_positive():
    for wrong in (0, -1, 1.5, "1", True):
        for make in (ddl.DDLCallback, distributed):
            error = fails(lambda make=make, wrong=wrong: make(bucket_bytes=wrong))
            assert isinstance(error, ValueError) and "`bucket_bytes`" in str(error), error
            assert repr(wrong) in str(error)
    for wrong in ("0", "ten"):
        os.environ["EASYDDL_BUCKET_BYTES"] = wrong
        error = fails(ddl.DDLCallback)
        del os.environ["EASYDDL_BUCKET_BYTES"]
        assert isinstance(error, ValueError), error
        assert "EASYDDL_BUCKET_BYTES" in str(error) and wrong in str(error)


def check_ranks_that_differ_in_bucket_bytes():
    if SIZE == 1:
        return
    first = ddl.DDLCallback(bucket_bytes=10 + (RANK == 1))
    model = new_model()
    callbacks = [first, ddl.DDLGlobalVariablesCallback()]
    error = fails(lambda: model.fit(*data(), verbose=0, callbacks=callbacks))
    assert "in buckets of 10" in str(error) and "in buckets of 11" in str(error), error


def without_nan(x):
    if np.isnan(x).any():
        raise ValueError("on purpose")
    return np.asarray(x)


def model_that_refuses_nan():
    class Odd(keras.layers.Layer):
        def call(self, x):
            if BACKEND == "tensorflow":
                import tensorflow as tf

                return tf.debugging.check_numerics(x, "on purpose")
            if BACKEND == "jax":
                import jax

                return jax.pure_callback(without_nan, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            without_nan(x.numpy())
            return x

    model = keras.Sequential([keras.layers.Input((6,)), Odd(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def check_a_step_that_failed_on_all_ranks_can_be_followed_by_another():
    model = model_that_refuses_nan()
    x, y = data()
    bad = x.copy()
    bad[-1] = np.nan
    error = fails(lambda: model.fit(bad, y, batch_size=8, shuffle=False, verbose=0,
                                    callbacks=both()))  # fmt: skip
    assert "on purpose" in str(error), error
    if BACKEND == "jax":
        model = model_that_refuses_nan()  # the failed step has had the other's variables
    model.fit(x, y, batch_size=8, verbose=0, callbacks=both())
    assert_replicas_are_equal(model)


def resources():
    """Threads, open files, and mapped memory of the engine's."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    return (
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
        maps.count("memfd:easyddl"),
    )


def check_many_fits_leave_nothing_behind():
    model = new_model()
    for _ in range(3):
        fit(model)
    before = resources()
    for _ in range(12):
        fit(model)
    after = resources()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


def check_optimizers_that_are_dropped_leave_nothing_behind():
    import gc

    def use_one():
        optimizer, variables = distributed(), new_variables([5])
        optimizer.apply([tensor(mine(5))], variables)
        assert_applied(variables)

    use_one()
    gc.collect()
    before = resources()
    gc.freeze()  # TensorFlow's modules hold a million objects, to look through each time
    for _ in range(70):
        use_one()
        gc.collect()
    gc.unfreeze()
    after = resources()
    assert all(now <= then + 2 for now, then in zip(after, before, strict=True)), (before, after)


def check_an_error_at_any_line_of_an_update():
    """One rank's error is never silent: the next updates are right, or errors on all ranks."""
    if SIZE == 1:
        return
    random_of_all = random.Random(SIZE)
    lines = LineErrors(("training/step/optimizer_hook", "reducer/", "backends/", "collectives/"))
    folders = set()
    for trial in range(60):
        optimizer, variables = distributed(bucket_bytes=1), new_variables([3, 5])

        def update(seed, optimizer=optimizer, variables=variables):
            before = [np.array(v.numpy()) for v in variables]
            optimizer.apply([tensor(mine(n, seed=seed)) for n in (3, 5)], variables)
            for n, variable, old in zip((3, 5), variables, before, strict=True):
                np.testing.assert_allclose(old - variable.numpy(), mean_of(n, seed=seed), atol=1e-5)

        is_first = trial % 3 == 0  # the step in which the ranks register
        if not is_first:
            update(trial)
        victim = random_of_all.randrange(SIZE)
        at = random_of_all.randint(1, 220 if is_first else 90) if victim == RANK else None
        outcomes = [outcome(lambda update=update, at=at: lines.run(lambda: update(100), at))]
        place = lines.place
        outcomes += [outcome(lambda seed=seed, update=update: update(seed)) for seed in (200, 300)]
        # TensorFlow's own exceptions carry the engine's errors.
        silent = [each for each in outcomes if isinstance(each, AssertionError)]
        assert not silent, (victim, place, outcomes)
        assert place is None or isinstance(outcomes[0], Exception), (place, outcomes)
        places = [each.split("/")[0] for each in COMM.allgather(place) if each]
        folders.update(places)
        if COMM.allreduce(sum(isinstance(each, Exception) for each in outcomes)):
            renew_communicator()
    assert folders >= {"training", "reducer", "backends"}, folders


def check_a_step_of_an_ended_fit_says_so():
    if SIZE == 1 or BACKEND == "torch":
        return  # there is no compiled step that could outlive the fit
    variables = new_variables([3])
    average = GradientReducer()
    step = compiled(lambda: average.mean([tensor(mine(3))], variables))
    step()
    average.close()
    error = fails(step)
    assert "a fit that has ended" in str(error), error


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Gradients do not exist")
    run_checks(globals())
