"""Ranks with different numbers of batches, and batches that count differently."""

import itertools
import warnings

import keras
import numpy as np
import tensorflow as tf
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails, in_shared_folder
from mpi import run_checks
from steps import BACKEND, KERAS, TAKES_SEVERAL_STEPS, fit_by_the_root, gradients_of, stateful
from uneven_batches import N, batches_of, dataset, fit, new_model

import easyddl as ddl
from easyddl.compat import keras_optimizer
from easyddl.training.fit import fit_context
from easyddl.training.step import optimizer_hook


def steps_of(parts):
    """What one process takes in each step: the batches of the ranks that have one."""
    longest = max(map(len, parts))
    for i in range(longest):
        there = [part[i] for part in parts if i < len(part)]
        yield tuple(np.concatenate(arrays) for arrays in zip(*there, strict=True))


def fit_alone(model, parts, epochs=1):
    steps = list(steps_of(parts))
    return fit_by_the_root(
        model, (step for _ in range(epochs) for step in steps), steps_per_epoch=len(steps),
        epochs=epochs, shuffle=False, verbose=0,
    )  # fmt: skip


def assert_equal_to_one_process(model, alone, rtol=1e-5):
    assert_replicas_are_equal(model)
    for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=rtol, atol=1e-6)
    everyone = COMM.allgather([np.asarray(v.numpy()).tobytes() for v in model.optimizer.variables])
    assert all(theirs == everyone[0] for theirs in everyone)
    taken = [int(keras_optimizer.steps_of(each.optimizer).numpy()) for each in (model, alone)]
    assert taken[0] == taken[1], taken


def check_few_batches():
    # On four ranks, say, one, two and three leave some without any; seven leaves one short.
    for count in (1, 2, 3, 7):
        parts = batches_of(count)
        model, alone = new_model(metrics=["mae"]), new_model(metrics=["mae"])
        history = fit(model, parts[RANK], epochs=3).history
        expected = fit_alone(alone, parts, epochs=3).history
        assert_equal_to_one_process(model, alone)
        for name in ("loss", "mae"):
            np.testing.assert_allclose(history[name], expected[name], rtol=1e-5)
        assert COMM.allgather(history) == [history] * SIZE


def check_few_batches_of_a_model_that_is_not_built():
    parts = batches_of(max(1, SIZE - 1))
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    fit(model, parts[RANK], epochs=2)
    assert_replicas_are_equal(model)
    assert int(model.optimizer.iterations.numpy()) == 2


def check_eager_steps_and_several_steps_at_once():
    for arguments in ({"run_eagerly": True}, {"steps_per_execution": 2}):
        if not TAKES_SEVERAL_STEPS and "steps_per_execution" in arguments:
            continue
        parts = batches_of(2 * SIZE + 1)
        model, alone = new_model(**arguments), new_model()
        fit(model, parts[RANK], epochs=2)
        fit_alone(alone, parts, epochs=2)
        assert_equal_to_one_process(model, alone)


class Counted(keras.callbacks.Callback):
    """How many steps and samples easyddl has counted in a fit, after each epoch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def set_model(self, model):
        super().set_model(model)
        self.meter = fit_context.current(model).meter
        self.before = self.meter.steps, self.meter.samples

    def on_epoch_end(self, epoch, logs=None):
        steps, samples = self.before
        self.found.append((self.meter.steps - steps, self.meter.samples - samples))


def check_ranks_that_lack_batches_of_an_execution():
    """The last rank has fewer batches than Keras takes at once, down to none."""
    if not TAKES_SEVERAL_STEPS:
        return
    model, alone = (new_model(metrics=["mae"], steps_per_execution=n) for n in (4, 1))
    for most, least in ((10, 7), (6, 2), (3, 0)):
        lengths = [most] * (SIZE - 1) + [least]
        everyones = itertools.chain(*batches_of(sum(lengths)))
        parts = [list(itertools.islice(everyones, length)) for length in lengths]
        counted = Counted()
        history = fit(model, parts[RANK], counted, epochs=2).history
        expected = fit_alone(alone, parts, epochs=2).history
        assert_equal_to_one_process(model, alone)
        for name in ("loss", "mae"):
            np.testing.assert_allclose(history[name], expected[name], rtol=1e-5)
        length = lengths[RANK]
        assert counted.found == [(n * length, n * length * N) for n in (1, 2)], counted.found


def check_several_steps_at_once_of_a_model_that_is_not_built():
    """The last rank has fewer batches than Keras takes at once. Keras builds from the first."""
    if not TAKES_SEVERAL_STEPS:
        return
    parts = batches_of(3 * SIZE - 2)
    models = []
    for inputs, several in ([], 3), ([keras.Input((5,))], 1):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
        models.append(keras.Sequential([*inputs, *layers]))
        models[-1].compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=several)
    fit(models[0], parts[RANK], epochs=2)
    fit_alone(models[1], parts, epochs=2)
    assert_equal_to_one_process(*models)


@in_shared_folder
def check_a_collective_after_a_step_in_which_no_rank_tells_the_others_of_its_end(folder):
    """It only accumulates gradients, or the shorter data end within an execution."""
    lengths = [11] * (SIZE - 1) + [10]
    everyones = itertools.chain(*batches_of(sum(lengths)))
    parts = [list(itertools.islice(everyones, length)) for length in lengths]
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    several = {"steps_per_execution": 4} if TAKES_SEVERAL_STEPS else {}
    for model in (new_model(accumulating), new_model(**several)):
        backup = ddl.BackupAndRestore(folder / "backup", save_freq=1)
        saving = ddl.ModelCheckpoint(folder / "x.weights.h5", save_weights_only=True, save_freq=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras is surprised that data end
            model.fit(
                dataset(parts[RANK]), epochs=2, verbose=0,
                callbacks=both(backup, saving, check_replicas=1),
            )  # fmt: skip
        assert_replicas_are_equal(model)
        state = [np.asarray(each.numpy()).tobytes() for each in model.optimizer.variables]
        assert COMM.allgather(state) == [state] * SIZE  # accumulated gradients, too


def check_gradients_that_an_epoch_and_a_fit_leave_over():
    """The next update applies those of all ranks."""
    parts = batches_of(5 * SIZE)
    model, alone = (
        new_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)) for _ in range(2)
    )
    for _ in range(2):
        fit(model, parts[RANK], epochs=2)
        fit_alone(alone, parts, epochs=2)
    assert_equal_to_one_process(model, alone)


class Limit(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True


def check_a_callback_of_one_rank_stops_all_after_the_same_step():
    model = new_model()
    fit(model, batches_of(8 * SIZE)[RANK], *[Limit()] * (RANK == 0), uneven="error")
    taken = COMM.allgather(int(model.optimizer.iterations.numpy()))
    assert taken == [4] * SIZE, taken


class Rates(keras.callbacks.Callback):
    """Notes the learning rate of each step."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(float(self.model.optimizer.learning_rate.numpy()))


def check_the_rate_within_an_epoch_is_the_same_on_all_ranks():
    length = 4 + (RANK == 0)
    rates, x = Rates(), np.ones((length * N, 5), "float32")
    warmup = ddl.LearningRateWarmupCallback(0.1, warmup_epochs=2)
    model = new_model(keras.optimizers.SGD(0.1))
    model.fit(x, x[:, :1], batch_size=N, epochs=2, verbose=0, callbacks=both(warmup, rates))
    rate = [0.1 * (1 + (SIZE - 1) * step / 10) for step in range(10)]
    want = [*rate[:length], *rate[5 : 5 + length]]
    np.testing.assert_allclose(rates.found, want, rtol=1e-5)


def check_arrays_of_different_lengths():
    for optimizer in (None, ddl.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))):
        train_on_arrays_of_different_lengths(optimizer)


def train_on_arrays_of_different_lengths(optimizer):
    sizes = [4 + 3 * rank for rank in range(SIZE)]
    random = np.random.default_rng(3)
    x = [random.standard_normal((n, 5)).astype("float32") for n in sizes]
    parts = [
        [(each[i : i + N], each[i : i + N].sum(1, keepdims=True)) for i in range(0, len(each), N)]
        for each in x
    ]
    model, alone = new_model(optimizer), new_model()
    model.fit(
        x[RANK], x[RANK].sum(1, keepdims=True), batch_size=N, epochs=2, shuffle=False, verbose=0,
        callbacks=both(),
    )  # fmt: skip
    fit_alone(alone, parts, epochs=2)
    assert_equal_to_one_process(model, alone)


def check_validation_of_different_lengths():
    parts, held_out = batches_of(7), batches_of(SIZE + 1, seed=5)
    model, alone = new_model(), new_model()
    history = fit(model, parts[RANK], epochs=2, validation_data=dataset(held_out[RANK])).history
    everything = tuple(
        np.concatenate(arrays)
        for arrays in zip(*[each for part in held_out for each in part], strict=True)
    )
    steps = list(steps_of(parts))
    expected = alone.fit(
        (step for _ in range(2) for step in steps), steps_per_epoch=len(steps), epochs=2,
        shuffle=False, verbose=0, validation_data=everything,
    ).history  # fmt: skip
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-5)
    assert_equal_to_one_process(model, alone)


def check_truncate():
    parts = batches_of(2 * SIZE + 1)  # rank 0 has one batch more
    model, alone = new_model(), new_model()
    history = fit(model, parts[RANK], epochs=2, uneven="truncate")
    assert len(history.epoch) == 2
    # The step in which others have none is the last one.
    fit_alone(alone, parts, epochs=2)
    assert_equal_to_one_process(model, alone)
    long = batches_of(5 * SIZE)
    mine = long[RANK] if RANK == 0 else long[RANK][:2]
    model = new_model()
    fit(model, mine, epochs=2, uneven="truncate")
    # On JAX one more step of each epoch is under way when the ranks hear of it.
    steps = 3 + (BACKEND == "jax") if SIZE > 1 else 5
    assert int(model.optimizer.iterations.numpy()) == 2 * steps
    assert_replicas_are_equal(model)


class Batches(keras.utils.PyDataset):
    """One rank's batches; it counts the epochs that Keras ends."""

    def __init__(self, batches, workers):
        super().__init__(workers=workers)
        self.batches, self.ended = batches, 0

    @property
    def num_batches(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]

    def on_epoch_end(self):
        self.ended += 1


def check_truncate_of_a_dataset_by_index():
    if KERAS < (3, 6):
        return  # which begins another epoch of a PyDataset where it has left the one before

    # Rank 0 leaves batches behind in each epoch, which the next one must not begin with.
    everyones = batches_of(7 * SIZE)
    parts = [part if rank == 0 else part[:2] for rank, part in enumerate(everyones)]
    steps = 3 + (BACKEND == "jax") if SIZE > 1 else 7
    for workers in (1, 2):
        model, alone = new_model(), new_model()
        mine = Batches(parts[RANK], workers)
        model.fit(
            mine, epochs=3, shuffle=False, verbose=0, callbacks=both(uneven="truncate")
        )  # fmt: skip
        fit_alone(alone, [part[:steps] for part in parts], epochs=3)
        assert_equal_to_one_process(model, alone)
        assert COMM.allgather(mine.ended) == [4] * SIZE  # once before the first


def check_truncate_of_an_order_by_epoch():
    if KERAS < (3, 6):
        return  # which begins another epoch of a PyDataset where it has left the one before

    x = np.random.default_rng(4).standard_normal((9 * N * SIZE, 5)).astype("float32")
    y = np.sin(x.sum(1, keepdims=True))
    data = ddl.split_data(x, y, shuffle="epoch", batch_size=N * (1 + (RANK == 1)))
    model = new_model()
    epochs = model.fit(data, epochs=3, verbose=0, callbacks=both(uneven="truncate")).epoch
    assert epochs == [0, 1, 2]
    if SIZE > 1:  # rank 1 has five batches, and a step tells
        assert int(model.optimizer.iterations.numpy()) == 3 * (6 + (BACKEND == "jax"))
    assert_replicas_are_equal(model)


def check_error():
    parts = batches_of(5 * SIZE)
    mine = parts[RANK] if RANK == 0 else parts[RANK][:2]
    if SIZE == 1:
        return
    error = fails(lambda: fit(new_model(), mine, uneven="error"))
    assert isinstance(error, RuntimeError), error
    short = ", ".join(map(str, range(1, SIZE)))
    assert f"Ranks {short} of {SIZE} ran out of batches in epoch 1" in str(error), error
    fit(new_model(), parts[RANK], uneven="error")  # even ones train


def check_uneven_is_one_of_three():
    error = fails(lambda: ddl.DDLCallback(uneven="wait"))
    assert isinstance(error, ValueError) and "'wait'" in str(error)
    if SIZE > 1:
        error = fails(
            lambda: fit(new_model(), batches_of(SIZE)[RANK], uneven=("join", "error")[RANK % 2])
        )
        assert "'join' on" in str(error) and "'error' on" in str(error), error


def check_sums_and_regularizers():
    # A sum over the samples of all ranks; the regularizer once, not once a rank.
    def make():
        keras.utils.set_random_seed(1)
        layer = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))
        loss = keras.losses.MeanSquaredError(reduction="sum")
        return new_model(keras.optimizers.SGD(0.01), [layer], loss)

    for count in (2 * SIZE, 2 * SIZE + 1):
        parts = batches_of(count)
        model, alone = make(), make()
        history = fit(model, parts[RANK], epochs=2).history
        expected = fit_alone(alone, parts, epochs=2).history
        # The regularizer is left out by the ranks that have no batch: one step of two epochs.
        rtol = 1e-5 if count % SIZE == 0 else 0.02
        assert_equal_to_one_process(model, alone, rtol=rtol)
        if count % SIZE == 0:
            np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)


def check_batches_of_different_sizes():
    parts = [batches_of(2 * SIZE, seed=rank, size=1 + 2 * rank)[rank] for rank in range(SIZE)]
    model, alone = new_model(), new_model()
    history = fit(model, parts[RANK], epochs=2).history
    expected = fit_alone(alone, parts, epochs=2).history
    assert_equal_to_one_process(model, alone)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)


def tokens(rank, step):
    random = np.random.default_rng([8, rank, step])
    x = random.integers(1, 9, (2, 6)).astype("int32")
    for row, length in zip(x, random.integers(1, 6 - rank % 3, 2), strict=True):
        row[length:] = 0
    return x, (x * 3 + 1) % 5


def check_masks():
    def make(**arguments):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([
            keras.layers.Input((6,), dtype="int32"),
            keras.layers.Embedding(9, 3, mask_zero=True), keras.layers.Dense(5),
        ])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)
        model.compile(keras.optimizers.SGD(0.5), loss)
        return model

    reductions = ["sum_over_batch_size"]
    if hasattr(keras.src.losses.loss, "reduce_values"):
        try:
            keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
            reductions.append("mean_with_sample_weight")
        except ValueError:
            pass  # an older Keras
    for reduction in reductions:
        model, alone = make(reduction=reduction), make(reduction=reduction)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the sparse gradient, where XLA compiles the step
            model.fit(
                (tokens(RANK, step) for step in range(4)), steps_per_epoch=4, verbose=0,
                shuffle=False, callbacks=both(),
            )  # fmt: skip
        for step in range(4):
            parts = [tokens(rank, step) for rank in range(SIZE)]
            alone.train_on_batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        assert_equal_to_one_process(model, alone)


def check_accumulated_gradients_are_not_lost():
    def make():
        return new_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))

    # Three batches a rank: one is left in the accumulators at the end of the first epoch.
    for count in (3 * SIZE, 3 * SIZE + 1):
        model = make()
        parts = batches_of(count)
        fit(model, parts[RANK], epochs=2)
        assert_replicas_are_equal(model)
        if count % SIZE == 0:
            alone = make()
            fit_alone(alone, parts, epochs=2)
            for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
                np.testing.assert_allclose(weight, want, rtol=1e-5, atol=1e-6)


def check_what_is_accumulated_is_the_mean_of_all():
    # No update at all: the steps exchange nothing, and each rank has more of them than the last.
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=100)
    model = new_model(optimizer, [keras.layers.Dense(1, use_bias=False)])
    parts = [batches_of(SIZE * SIZE, seed=rank)[rank][: rank + 1] for rank in range(SIZE)]
    fit(model, parts[RANK])
    kernel = model.get_weights()[0]
    sums = [
        sum(2 * x.T @ (x @ kernel - y) / len(x) for x, y in part) for part in parts
    ]  # of the gradients of the mean squared error
    found = optimizer._accumulated_gradients[0].numpy()
    # Keras has divided them by the number of steps already, or will.
    ratio = found / np.mean(sums, axis=0)
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-4)
    assert np.isclose(ratio.mean(), 1) or np.isclose(ratio.mean(), 0.01), ratio
    assert COMM.allgather(int(optimizer._iterations.numpy())) == [SIZE] * SIZE
    assert_replicas_are_equal(model)


def check_two_optimizers():
    class Twins(keras.Model):
        """A generator and a discriminator, as far as their optimizers go."""

        def __init__(self):
            super().__init__()
            self.one, self.two = keras.layers.Dense(1), keras.layers.Dense(1)
            self.built = True
            self.one.build((None, 5))
            self.two.build((None, 5))

        def call(self, x):  # by which Keras builds a model, on PyTorch
            return self.one(x)

        def compile(self, first, second):
            super().compile(loss="mse")
            self.first, self.second = first, second

        @stateful
        def train_step(self, data):
            x, y = data
            for layer, optimizer in ((self.one, self.first), (self.two, self.second)):
                loss, found = gradients_of(
                    lambda layer=layer: self.compute_loss(
                        x, y, layer(x) + keras.ops.stop_gradient(self.two(x))
                    ),
                    layer.trainable_variables,
                )
                optimizer.apply(found, layer.trainable_variables)
            return {"loss": loss}

    def make():
        keras.utils.set_random_seed(4)
        model = Twins()
        model.compile(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01))
        model.run_eagerly = BACKEND == "jax"  # whose state is that of one optimizer
        if model.jit_compile:  # XLA lets no step make variables
            model.first.build(model.one.trainable_variables)
            model.second.build(model.two.trainable_variables)
        return model

    parts = batches_of(2 * SIZE + 1)
    model, alone = make(), make()
    fit(model, parts[RANK], epochs=2)
    fit_alone(alone, parts, epochs=2)
    assert_replicas_are_equal(model)
    for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-5, atol=1e-6)
    assert not optimizer_hook.is_hooked(model.first) and not optimizer_hook.is_hooked(model.second)


class Centred(keras.Sequential):
    """Its targets lose their mean over all samples of a step, and its gradients know."""

    @stateful
    def train_step(self, data):
        x, y = data
        samples = keras.ops.cast(keras.ops.shape(x)[0], "float32")

        def compute():
            found = self(x, training=True)
            sums = keras.ops.stack([keras.ops.sum(y), keras.ops.sum(found), samples])
            total = self.add_up(sums)
            centred = found - total[1] / total[2]
            return self.compute_loss(x, y - total[0] / total[2], centred)

        variables = self.trainable_variables
        loss, found = gradients_of(compute, variables)
        self.optimizer.apply(found, variables)
        return {"loss": loss, "samples": self.average(samples)}

    add_up = average = staticmethod(lambda x: x)


class CentredOverAll(Centred):
    def add_up(self, x):
        return ddl.allreduce(x, op="sum")

    def average(self, x):
        return ddl.allreduce(x)


def check_collectives_inside_of_the_step():
    def make(kind):
        keras.utils.set_random_seed(6)
        model = kind([keras.layers.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    # Batches of different sizes too: a step is traced again for some.
    parts = [batches_of(2 * SIZE + 1, seed=rank, size=2 + rank)[rank] for rank in range(SIZE)]
    alone = make(Centred)
    fit_alone(alone, parts, epochs=2)
    for eagerly in (False, True):
        model = make(CentredOverAll)
        model.run_eagerly = eagerly
        fit(model, parts[RANK], epochs=2)
        assert_equal_to_one_process(model, alone)


def check_collectives_inside_of_a_function():
    if BACKEND != "tensorflow":
        return

    @tf.function
    def mean(x):
        return ddl.allreduce(x)

    for step in range(3):
        result = mean(tf.constant([1.0 + RANK, RANK * step]))
        wanted = [1.0 + (SIZE - 1) / 2, step * (SIZE - 1) / 2]
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


def check_bad_collectives_inside_of_the_step():
    if BACKEND != "tensorflow":
        return  # it is tf.function that makes a step of them here

    @tf.function(input_signature=[tf.TensorSpec((None,), "float32")])
    def of_any_shape(x):
        return ddl.allreduce(x)

    @tf.function
    def largest(x):
        return ddl.allreduce(x, op="max")

    for function in (of_any_shape, largest):
        error = fails(lambda f=function: f(tf.zeros(3)))
        assert isinstance(error, ValueError) and "Received" in str(error), error


class StopAt(keras.callbacks.Callback):
    """Stops on one rank, after one step, and counts the steps of this one."""

    def __init__(self, rank, step):
        super().__init__()
        self.rank, self.step, self.taken = rank, step, 0

    def on_train_batch_end(self, batch, logs=None):
        self.taken += 1
        if self.rank == RANK and batch == self.step:
            self.model.stop_training = True


def check_all_stop_after_the_same_step():
    parts = batches_of(8 * SIZE)
    for rank in {0, SIZE - 1}:
        stop = StopAt(rank, 2)
        history = fit(new_model(), parts[RANK], stop, epochs=3)
        # One step later than a process alone: the next one tells all.
        assert stop.taken == (4 if SIZE > 1 else 3), stop.taken
        assert len(history.epoch) == 1
        assert len(set(COMM.allgather(stop.taken))) == 1


def check_a_stop_after_the_last_step_of_an_epoch():
    parts = batches_of(3 * SIZE)
    stop = StopAt(SIZE - 1, 2)
    history = fit(new_model(), parts[RANK], stop, epochs=3)
    assert (stop.taken, len(history.epoch)) == (3, 1)


def check_a_rank_that_stops_while_others_have_no_batches():
    parts = batches_of(6 * SIZE)
    mine = parts[RANK] if RANK == 0 else parts[RANK][:1]
    stop = StopAt(0, 2)
    history = fit(new_model(), mine, stop, epochs=3)
    assert len(history.epoch) == 1
    assert COMM.allgather(stop.taken) == [4 if SIZE > 1 else 3] + [1] * (SIZE - 1)


def check_a_loss_that_is_no_number_on_one_rank():
    parts = batches_of(4 * SIZE)
    if RANK == SIZE - 1:
        parts[RANK][1][0][:] = np.nan
    nan = keras.callbacks.TerminateOnNaN()
    history = fit(new_model(), parts[RANK], nan, epochs=3)
    assert COMM.allgather(len(history.epoch)) == [1] * SIZE


def check_moving_statistics_are_averaged():
    def make():
        return new_model(layers=[keras.layers.BatchNormalization(), keras.layers.Dense(1)])

    class Spy(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.at_validation = [v.numpy() for v in statistics(self.model)]

    def statistics(model):
        return [model.layers[0].moving_mean, model.layers[0].moving_variance]

    parts = batches_of(2 * SIZE)
    spy, model = Spy(), make()
    fit(model, parts[RANK], spy, validation_data=dataset(parts[RANK]))
    means, variances = [], []
    for part in parts:
        mean, variance = np.zeros(5), np.ones(5)
        for x, _ in part:
            mean = 0.99 * mean + 0.01 * x.mean(0)
            variance = 0.99 * variance + 0.01 * x.var(0)
        means.append(mean)
        variances.append(variance)
    for found in (spy.at_validation, [v.numpy() for v in statistics(model)]):
        np.testing.assert_allclose(found[0], np.mean(means, 0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found[1], np.mean(variances, 0), rtol=1e-4)


if __name__ == "__main__":
    run_checks(globals())
