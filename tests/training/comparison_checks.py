"""What the ranks compare at the start of a fit: their data, and their configuration."""

import contextlib
import importlib.util
import io
import tempfile
import warnings

import keras
import numpy as np
from keras import ops
from mpi import run_checks
from mpi4py import MPI
from steps import TAKES_SEVERAL_STEPS

import easyddl as ddl
from easyddl.runtime import notices

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LAST = SIZE - 1
SAMPLES = 8 * SIZE


def new_model(optimizer=None, *layers, **arguments):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.1), **{"loss": loss, **arguments})
    return model


def data(samples=SAMPLES, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((samples, 4)).astype("float32")
    return x, random.integers(0, 3, samples)


def fit(x, y=None, model=None, **arguments):
    """A fit of a new model, and what it printed on the root."""
    notices._told.clear()
    printed = io.StringIO()
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    arguments = {"batch_size": 4, "verbose": 0, "callbacks": callbacks, **arguments}
    with contextlib.redirect_stderr(printed):
        (model or new_model()).fit(x, y, **arguments)
    return COMM.bcast(printed.getvalue())


def refused(x, y=None, model=None, **arguments):
    """The texts of the errors that all ranks raised. Afterwards the ranks can train."""
    try:
        fit(x, y, model, **arguments)
    except ValueError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert ddl.allreduce(1, "sum") == SIZE
    return text


def check_what_is_right_prints_nothing():
    x, y = data()
    for shuffle in (False, True):
        assert not fit(*ddl.split_data(x, y, shuffle=shuffle, remainder="keep"))
    assert not fit(ddl.split_data(x, y, shuffle="epoch", batch_size=4))
    # What a script makes of its shard is its own, and so are data that it has not split.
    mine, labels = ddl.split_data(x, y)
    assert not fit(mine + RANK, labels, class_weight={0: 1.0, 1: 2.0, 2: 1.0})
    assert not fit(*data(seed=RANK))
    assert not fit(np.ones((8, 4), "float32"), np.zeros(8))  # nothing to tell them apart by


def check_other_lengths_are_an_error():
    if SIZE == 1:
        return
    x, y = data(SAMPLES + SIZE * (RANK == LAST))
    text = refused(*ddl.split_data(x, y))
    assert "different shapes to split_data() in comparison_checks.py, line" in text, text
    assert f"({SAMPLES}, 4)" in text and f"({SAMPLES + SIZE}, 4) on rank {LAST}" in text, text


def check_other_integers_and_texts_are_an_error():
    if SIZE == 1:
        return
    x, y = data()
    other = y.copy()
    other[-1] += RANK == LAST
    text = refused(*ddl.split_data(x, other))
    assert "passed arrays[1] with different contents" in text, text
    assert f"other values on rank {LAST} than on rank 0" in text and "compare=False" in text, text
    names = [f"image-{i}.png" for i in range(SAMPLES)]
    if RANK == LAST:
        names.reverse()
    ddl.split_data(names)
    text = refused(*ddl.split_data(x, y))
    assert "different contents" in text and "sort what the file system lists" in text, text
    ddl.split_data(names, compare=False)
    assert not fit(*ddl.split_data(x, y))


class Batches(keras.utils.PyDataset):
    """Batches in an order that each process draws for itself."""

    def __init__(self):
        super().__init__()
        self.order = np.random.default_rng(RANK).permutation(SAMPLES)

    def __len__(self):
        return SAMPLES // 4

    def __getitem__(self, i):
        x, y = data()
        rows = self.order[4 * i : 4 * i + 4]
        return x[rows], y[rows]


def check_another_order_within_datasets_is_an_error():
    if SIZE == 1:
        return
    text = fit(ddl.split_data(Batches()), batch_size=None)
    assert "arrays[0] (its attribute `order`) with different contents" in text, text
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    whole = torch.utils.data.TensorDataset(*map(torch.tensor, data()))
    generator = torch.Generator().manual_seed(RANK)
    half, _ = torch.utils.data.random_split(whole, [0.5, 0.5], generator)
    loader = torch.utils.data.DataLoader(half, batch_size=2)
    text = refused(ddl.split_data(loader))
    assert "arrays[0] (its indices 0) with different contents" in text, text


def check_another_order_within_datasets_of_tensorflow_is_an_error():
    """As that of `keras.utils.split_dataset` without a seed."""
    if SIZE == 1 or importlib.util.find_spec("tensorflow") is None:
        return
    import tensorflow as tf

    x, y = data()
    order = np.random.default_rng(RANK).permutation(SAMPLES)
    samples = tf.data.Dataset.from_tensor_slices((x[order], y[order]))
    text = refused(ddl.split_data(samples.prefetch(2)).batch(4))
    assert "arrays[0] (its tensor 1) with different contents" in text, text
    equal = ddl.split_data(tf.data.Dataset.from_tensor_slices((x, y))).batch(4)
    assert not fit(equal, shuffle=False, batch_size=None)


def check_other_floats_are_a_warning():
    if SIZE == 1:
        return
    x, y = data()
    text = fit(*ddl.split_data(x + RANK, y))
    assert "warning: The ranks passed arrays[0] with different contents" in text, text
    # Hosts that round differently are no reason.
    assert not fit(*ddl.split_data(x * (1 + 1e-6 * RANK), y))


def check_other_arguments_are_an_error():
    if SIZE == 1:
        return
    text = refused(*ddl.split_data(*data(), shuffle=True, seed=RANK))
    assert "same arguments to split_data()" in text and "seed=0" in text, text


def check_calls_of_some_ranks_only_are_not_compared():
    if RANK == 0:
        ddl.split_data(data(seed=1)[0])
    assert not fit(*ddl.split_data(*data()))


def check_data_that_are_not_split():
    x, y = data()
    text = fit(x, y)
    assert (f"all {SIZE} ranks pass the same x" in text) == (SIZE > 1), text
    x[0, 0] = np.nan
    text = fit({"a": x}["a"], y, steps_per_epoch=2)
    assert ("pass the same x" in text) == (SIZE > 1), text


def check_generators_that_are_not_split():
    """An endless one, and one that each rank has for itself."""

    def batches(seed):
        for i in range(1000):
            yield data(4, seed=seed + i)

    endless = {"batch_size": None, "steps_per_epoch": 2, "shuffle": False}
    text = fit(batches(0), **endless, epochs=2)
    assert text.count(f"all {SIZE} ranks have the same losses") == (SIZE > 1), text
    assert not fit(batches(1000 * RANK), **endless, epochs=2)
    assert not fit(ddl.split_data(batches(0)), **endless)


def check_losses_that_tell_no_samples_apart():
    """Losses of zero, those that are not finite, and constants."""

    def batches(value):
        while True:
            yield np.full((4, 4), value, "float32"), np.zeros((4, 3), "float32")

    def constant(y, p):
        return 0.3 + 0.0 * keras.ops.mean(p, axis=-1)

    endless = {"batch_size": None, "steps_per_epoch": 2, "shuffle": False, "epochs": 2}
    for value, loss in ((0.0, "mse"), (np.inf, "mse"), (1.0 + RANK, constant)):
        model = new_model(loss=loss)
        assert not fit(batches(value), None, model, **endless)


def check_data_that_are_split_twice():
    printed = io.StringIO()
    x, y = data(SAMPLES * SIZE)
    with contextlib.redirect_stderr(printed):
        x, y = ddl.split_data(*ddl.split_data(x, y))
    text = COMM.bcast(printed.getvalue())
    assert ("split_data() received data that it has already split" in text) == (SIZE > 1), text
    assert ("Split the data once" in text) == (SIZE > 1), text
    assert not fit(x, y)


def check_one_of_two_arrays_is_split():
    if SIZE == 1:
        return
    x, y = data()
    text = refused(ddl.split_data(x), y)
    assert "`y` of model.fit() has the samples of all ranks, and `x` those of this" in text, text
    assert f"x with 8 samples, y with {SAMPLES} samples" in text, text
    assert "Split them together, as in `x, y = ddl.split_data(x, y)`" in text, text
    inputs = [keras.Input((4,)), keras.Input((4,))]
    model = keras.Model(inputs, keras.layers.Add()(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    mine = ddl.split_data(x)
    text = refused([mine, x], mine, model)
    assert "`x[1]` of model.fit() has the samples of all ranks, and `x[0]` those" in text, text
    # On one rank only: the others name it.
    both = ddl.split_data(x, y)
    text = refused(*((both[0], y) if RANK == LAST else both))
    assert "`y` of model.fit()" in text and (RANK == LAST or f"(on rank {LAST})" in text), text


def check_steps_that_count_the_batches_of_all_ranks():
    """Of arrays, and of any other data whose length is known."""

    class Batches(keras.utils.PyDataset):
        num_batches = 2

        def __getitem__(self, i):
            return data(4, seed=10 * RANK + i)

    for mine, arguments in ((ddl.split_data(*data()), {}), ([Batches()], {"batch_size": None})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras's own: it runs out of data
            text = fit(*mine, steps_per_epoch=2 * SIZE, **arguments)
        assert ("have 2 batches. Divide it by ddl.size()" in text) == (SIZE > 1), text
        assert not fit(*mine, steps_per_epoch=2, **arguments)


def check_validation_data_of_other_lengths():
    x, y = ddl.split_data(*data())
    for more, warns in ((1, False), (10, SIZE > 1)):
        text = fit(x, y, validation_data=data(20 + more * (RANK == LAST), seed=RANK))
        assert ("different `validation_data` to model.fit()" in text) == warns, text
    callbacks = [ddl.DDLCallback(validation="split"), ddl.DDLGlobalVariablesCallback()]
    assert not fit(x, y, validation_data=data(20 + 10 * RANK, seed=RANK), callbacks=callbacks)


def search(seed):
    """A search of KerasTuner on each rank. Returns its tuner, or the error that ended it."""
    import keras_tuner

    def build(hp):
        keras.utils.set_random_seed(1)
        momentum = hp.Float("momentum", 0.0, 0.9)
        return new_model(keras.optimizers.SGD(0.1, momentum=momentum), metrics=["accuracy"])

    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(
            build,
            objective=keras_tuner.Objective("loss", "min"),
            max_trials=2,
            max_consecutive_failed_trials=1,
            seed=seed,
            directory=folder,
        )
        try:
            tuner.search(*ddl.split_data(*data()), batch_size=4, verbose=0, callbacks=callbacks)
        except RuntimeError as error:
            return error
        return tuner


def check_a_tuner_on_each_rank():
    """KerasTuner appends callbacks to those of the user, and copies these for each trial."""
    if SIZE == 1 or importlib.util.find_spec("keras_tuner") is None:
        return
    # KerasTuner 1.4 calls what is deprecated, and prints the error of a trial.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        tuner = search(seed=1)
        error = search(seed=1 + RANK)
    mine = [(t.hyperparameters.values, t.score) for t in tuner.oracle.trials.values()]
    assert len(mine) == 2
    assert all(theirs == mine for theirs in COMM.allgather(mine)), mine
    text = str(error)
    assert "momentum is " in text and f"on rank {LAST}" in text, text


def check_class_weights_that_differ():
    text = fit(*ddl.split_data(*data()), class_weight={0: 1.0 + RANK, 1: 1.0, 2: 1.0})
    assert ("`class_weight` of model.fit() differs" in text) == (SIZE > 1), text


def check_class_weights_in_another_order():
    weights = {0: 1.0, 1: 0.1 + 0.2, 2: 3.0}
    mine = dict(reversed(weights.items())) if RANK else {**weights, 1: 0.3}
    assert not fit(*ddl.split_data(*data()), class_weight=mine)


def check_epochs_that_differ_are_an_error():
    if SIZE == 1:
        return
    mine = ddl.split_data(*data())
    validation = {"validation_data": data(), "epochs": 4}
    for name, of_last, arguments in (
        ("epochs", 3, {"epochs": 2}),
        ("initial_epoch", 1, {"epochs": 3, "initial_epoch": 0}),
        ("validation_freq", 2, {**validation, "validation_freq": 1}),
        ("validation_freq", [1, 3], {**validation, "validation_freq": [1, 2]}),
    ):
        others = arguments[name]
        arguments = {**arguments, name: of_last} if RANK == LAST else arguments
        text = refused(*mine, **arguments)
        assert f"All ranks must pass the same `{name}` to model.fit()" in text, text
        assert f"{others} on rank" in text and f"; {of_last} on rank {LAST}" in text, text
    # A rank that does not validate follows the others.
    arguments = {"epochs": 2}
    if RANK == LAST:
        arguments |= {"validation_data": data(seed=RANK), "validation_freq": 2}
    assert not fit(*mine, **arguments)


def check_steps_that_differ():
    """Shards of different lengths have other numbers of steps, and so has a mistake."""
    if SIZE == 1:
        return
    x, y = data(20 * SIZE, seed=RANK)
    for more, said in ((1, False), (2, True)):
        text = fit(x, y, steps_per_epoch=2 + more * (RANK == LAST))
        assert ("note: the ranks pass different `steps_per_epoch`" in text) == said, text
        arguments = {"validation_data": (x, y), "validation_batch_size": 4}
        arguments["validation_steps"] = 2 + more * (RANK == LAST)
        text = fit(x, y, **arguments)
        assert ("warning: the ranks pass different `validation_steps`" in text) == said, text
        assert not said or f"; {2 + more} on rank {LAST}" in text, text
    callbacks = [ddl.DDLCallback(validation="split"), ddl.DDLGlobalVariablesCallback()]
    assert not fit(x, y, callbacks=callbacks, **arguments)
    if RANK == LAST:
        del arguments["validation_steps"]
    assert f"None on rank {LAST}" in fit(x, y, **arguments)


def check_models_that_one_rank_alone_has_made_before():
    """Keras numbers layers and their optimizer's variables by what the process has made."""
    for _ in range(RANK):
        new_model(None, keras.layers.BatchNormalization())
    x, y = ddl.split_data(*data())
    adam = keras.optimizers.Adam(0.1)
    model = new_model(adam, keras.layers.Dense(4), keras.layers.BatchNormalization())
    assert not fit(x, y, model, epochs=2, validation_data=(x, y))
    assert len(set(COMM.allgather(model.get_weights()[0].tobytes()))) == 1
    # The outputs of a model, and the entries of its logs, have the names of its last layers.
    inner = keras.Input((4,))
    model = keras.Model(inner, [keras.layers.Dense(3)(inner), keras.layers.Dense(3)(inner)])
    model.compile("adam", ["mse", "mae"], metrics=[["mae"], ["mse"]])
    text = fit(x, [x[:, :3], x[:, :3]], model, epochs=2)
    assert ("outputs have other names on each rank" in text) == (SIZE > 1), text
    assert "models differ" not in text, text
    assert len(set(COMM.allgather(model.get_weights()[0].tobytes()))) == 1


def check_optimizers_that_differ_are_an_error():
    if SIZE == 1:
        return
    mine = ddl.split_data(*data())
    sgd, adam = keras.optimizers.SGD, keras.optimizers.Adam
    for name, optimizer in {
        "momentum": sgd(0.1, momentum=0.5 * (RANK == LAST)),
        "clipnorm": sgd(0.1, clipnorm=np.float32(1.0 + RANK)),
        "beta_1": keras.optimizers.LossScaleOptimizer(adam(0.1, beta_1=0.9 - 0.1 * RANK)),
        "gradient_accumulation_steps": sgd(0.1, gradient_accumulation_steps=2 + RANK),
        "initial_learning_rate": sgd(keras.optimizers.schedules.CosineDecay(0.1 + RANK, 10)),
        "class": (adam if RANK == LAST else sgd)(0.1),
    }.items():
        text = refused(*mine, new_model(optimizer))
        assert f"{name} is " in text and f"on rank {LAST}" in text, text
        assert "All ranks must configure the model in the same way" in text, text
    for name, arguments in {
        "loss": {"loss": "mse" if RANK == LAST else "mae"},
        "loss_weights": {"loss_weights": [1.0 + RANK]},
        "metrics": {"metrics": ["mse"] * (RANK == LAST)},
        "steps_per_execution": {"steps_per_execution": 1 + (RANK == LAST)},
    }.items():
        if name != "steps_per_execution" or TAKES_SEVERAL_STEPS:
            text = refused(*mine, new_model(**arguments))
            assert f"compile(): {name}" in text, text


def check_numbers_of_other_types_are_equal():
    """One rank may have drawn a number by NumPy, and another one read it from a file."""
    rate = np.float32(0.1) if RANK == LAST else 0.1
    model = new_model(keras.optimizers.SGD(0.1, clipnorm=rate), keras.layers.GaussianNoise(rate))
    assert not fit(*ddl.split_data(*data()), model)


def check_messages_show_values_that_differ_as_different():
    if SIZE == 1:
        return
    mine = ddl.split_data(*data())
    text = refused(*mine, new_model(keras.optimizers.SGD(0.1, clipnorm=1.0 + 1e-6 * RANK)))
    assert "clipnorm is 1.0 on rank 0; 1.000001 on rank 1" in text, text
    layer = keras.layers.Reshape((4,))
    layer.get_config = lambda: {"long": f"{'a' * 100}{RANK}"}
    text = fit(*mine, new_model(None, layer))
    assert text.count("aaa... (checksum ") == SIZE, text


def check_losses_that_differ_beside_what_cannot_be_serialized():
    if SIZE == 1:
        return

    class Own(keras.metrics.SparseCategoricalAccuracy):
        def get_config(self):
            raise NotImplementedError

    mine = ddl.split_data(*data())
    for loss in ("mse" if RANK == LAST else "mae", keras.losses.Huber(delta=1.0 + RANK)):
        text = refused(*mine, model=new_model(loss=loss, metrics=[Own()]))
        assert "compile(): loss" in text and f"on rank {LAST}" in text, text


def check_learning_rates_that_differ_are_a_warning():
    rate = 0.1 * (RANK + 1)
    model = new_model(keras.optimizers.SGD(rate))
    text = fit(*ddl.split_data(*data()), model)
    assert ("learning_rate is 0.1 on rank 0; 0.2 on rank 1" in text) == (SIZE > 1), text
    assert float(model.optimizer.learning_rate.numpy()) == np.float32(0.1)


class Heads(keras.layers.Layer):
    """Keeps layers in a dict, which may be made from a set."""

    def __init__(self, names):
        super().__init__()
        self.heads = {name: keras.layers.Dense(3) for name in names}

    def call(self, x):
        return sum(head(x) for head in self.heads.values())


def check_layers_that_differ_are_a_warning():
    layers = keras.layers.Dropout(0.1 + 0.1 * RANK, name=f"mine_{RANK}", seed=RANK)
    text = fit(*ddl.split_data(*data()), new_model(None, layers))
    assert ("the ranks' layers are configured differently" in text) == (SIZE > 1), text
    assert ("Dropout: rate is 0.1 on rank 0; 0.2 on rank 1" in text) == (SIZE > 1), text
    assert "seed is" not in text and "mine_" not in text, text
    text = fit(*ddl.split_data(*data()), new_model(None, Heads("ab" if RANK == 0 else "ba")))
    assert ("key in heads is 'a' on rank 0; 'b' on rank" in text) == (SIZE > 1), text


def check_optimizers_with_schedules_without_a_config_are_compared():
    """As that of many a tutorial on Transformers."""

    class OwnRate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    if SIZE > 1:
        sgd = keras.optimizers.SGD(OwnRate(), momentum=0.5 + 0.1 * RANK)
        text = refused(*ddl.split_data(*data()), new_model(sgd))
        assert "momentum is 0.5 on rank 0; 0.6 on rank 1" in text, text


class Scores(keras.layers.Layer):
    """Keeps what its last call has computed, and an array that it changes."""

    def __init__(self):
        super().__init__()
        self.scores, self.last_samples = None, np.zeros(3)

    def call(self, x):
        if not getattr(x, "is_meta", True):  # a tensor of PyTorch that has values
            self.scores = ops.convert_to_numpy(x)
            self.last_samples = np.roll(self.last_samples, 1) + RANK
        return x


class Helper:
    pass


class Soft(keras.losses.Loss):
    """Its config has the address of an object."""

    def __init__(self, helper):
        super().__init__()
        self.helper = helper

    def call(self, y, p):
        return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)

    def get_config(self):
        return {**super().get_config(), "helper": repr(self.helper)}


class Counted(keras.utils.PyDataset):
    """Counts how often each batch was read."""

    def __init__(self):
        super().__init__()
        self.reads = np.zeros(len(self), int)

    def __len__(self):
        return 2 * SIZE

    def __getitem__(self, i):
        self.reads[i] += 1
        return data(4, seed=i)


def load(seed):
    return ddl.split_data(*data(seed=seed))


def check_right_scripts_that_are_unusual_print_nothing():
    layer = Scores()
    for _ in range(2):
        assert not fit(*load(0), new_model(None, layer, loss=Soft(Helper())))
    if RANK == 0:
        load(1)  # the root has looked at other data by the same function
    assert not fit(*load(0))
    counted = Counted()
    for _ in range(2):
        assert not fit(ddl.split_data(counted), batch_size=None, epochs=2)

    # Tasks of the same inputs, batches of other sizes, and moments that were added up otherwise.
    x, y = data()
    normalization = keras.layers.Normalization(mean=0.1 * (1 + 1e-7 * RANK), variance=1.0)
    model = keras.Sequential([keras.Input(batch_shape=(2 + 2 * RANK, 4)), normalization])
    model.add(keras.layers.Dense(3))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    mine = ddl.split_data(*data(8 * SIZE))
    assert not fit(*mine, model, batch_size=2 + 2 * RANK, steps_per_epoch=2)
    assert not fit(x, (y + RANK) % 3)


def check_what_cannot_be_serialized_is_left_out():
    class Own(keras.layers.Layer):
        def __init__(self, given):
            super().__init__()
            self.given = given

        def call(self, x):
            return x * self.given

    class OwnRate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    model = new_model(
        keras.optimizers.SGD(OwnRate()), Own(2.0), loss=lambda y, p: keras.ops.mean(p, axis=-1)
    )
    assert not fit(*ddl.split_data(*data()), model)


def check_modules_of_pytorch_with_other_initial_weights():
    """The broadcast makes them equal."""
    if keras.backend.backend() != "torch":
        return
    import torch

    torch.manual_seed(RANK)
    wrapper = keras.layers.TorchModuleWrapper(torch.nn.Linear(4, 4))
    assert not fit(*ddl.split_data(*data()), new_model(None, wrapper))
    wrapper = keras.layers.TorchModuleWrapper(torch.nn.LeakyReLU(0.1 + RANK))
    text = fit(*ddl.split_data(*data()), new_model(None, wrapper))
    assert ("LeakyReLU(negative_slope=1.1)' on rank 1" in text) == (SIZE > 1), text


def check_layers_that_were_adapted_after_the_split():
    """All ranks compute with the root's mean and variance, as a process would that has its part."""
    x, y = data(seed=3)
    parts = [x[rank::SIZE] for rank in range(SIZE)]
    layer = keras.layers.Normalization()
    layer.adapt(parts[RANK])
    passed = keras.layers.Normalization(mean=parts[RANK].mean(0), variance=parts[RANK].var(0))
    model = new_model(None, layer, passed)
    # These compile functions that contain this rank's own moments.
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    for epochs in (1, 2):  # the second fit goes on with the compiled step of the first
        text = fit(*ddl.split_data(x, y), model, epochs=epochs, batch_size=8)
        assert ("called `adapt` of" in text) == (SIZE > 1 and epochs == 1), text
        assert "models differ" not in text, text
    means = COMM.allgather(keras.ops.convert_to_numpy(layer.mean))
    np.testing.assert_allclose(means[RANK].ravel(), parts[0].mean(0), rtol=1e-5)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(passed.variance).ravel(), parts[0].var(0), rtol=1e-5
    )
    answers = COMM.allgather(np.asarray(model.predict(x, verbose=0)))
    assert all(np.array_equal(each, answers[0]) for each in answers)
    mean, deviation = parts[0].mean(0), parts[0].std(0)
    weight, bias = model.layers[-1].get_weights()
    logits = ((x - mean) / deviation - mean) / deviation @ weight + bias
    np.testing.assert_allclose(answers[RANK], logits, rtol=1e-3, atol=1e-4)
    loss = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(SAMPLES), y])
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), loss, rtol=1e-3)


def check_a_discretization_that_was_adapted_after_the_split():
    """What `adapt` has summed up remains each rank's own, and no step uses it."""
    x, y = ddl.split_data(*data(16 * SIZE))
    layer = keras.layers.Discretization(num_bins=4)
    layer.adapt(x)
    text = fit(x, y, new_model(None, layer))
    assert ("called `adapt` of" in text) == (SIZE > 1) and "models differ" not in text, text
    assert len(set(COMM.allgather(repr(layer.bin_boundaries)))) == 1


def check_a_normalization_that_the_first_batch_builds():
    model = keras.Sequential([keras.layers.Normalization(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    assert not fit(*ddl.split_data(*data()), model)


def new_raw_variable(value):
    """A variable that no layer tracks, as a script may create it for its loss."""
    value = np.full(2, value, "float32")
    import tensorflow as tf

    return tf.Variable(value, name="raw", trainable=False)


def check_variables_outside_of_the_model():
    """A compiled step of TensorFlow knows them. It also has metrics, which may differ."""
    if keras.backend.backend() != "tensorflow":
        return
    x, y = ddl.split_data(*data())

    def evaluate_on_the_root(*arguments):
        if RANK == 0:
            model.evaluate(x, y, verbose=0)

    evaluate = keras.callbacks.LambdaCallback(on_epoch_end=evaluate_on_the_root)
    callbacks = [ddl.DDLCallback(), evaluate, ddl.DDLGlobalVariablesCallback()]
    for value, warns in ((0.5, False), (0.5 + RANK, SIZE > 1)):
        raw = new_raw_variable(value)

        def loss(y_true, y_pred, raw=raw):
            return keras.ops.mean(keras.ops.square(y_pred * raw[0] - raw[1]), axis=-1)

        model = new_model(loss=loss, metrics=["accuracy"])
        text = fit(x, y, model=model, callbacks=callbacks)
        assert ("use variables that the model does not track" in text) == warns, text

    class WithoutLoss(keras.Sequential):
        metrics = (keras.metrics.Mean("own"),)

    model = WithoutLoss(new_model().layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert not fit(x, y, model=model)


def check_weights_that_the_root_alone_has_loaded():
    """What layers have computed from their variables follows the broadcast."""
    layer = keras.layers.Normalization()
    layer.adapt(data(seed=RANK)[0])
    model = new_model(None, layer)
    other = keras.layers.Normalization()
    other.adapt(data(seed=9)[0])
    ddl.broadcast_variables(layer.variables)  # now all have the root's, and some other moments
    fit(*ddl.split_data(*data()), model)
    assert len(set(COMM.allgather(keras.ops.convert_to_numpy(layer.mean).tobytes()))) == 1


def check_arrays_in_attributes_of_layers_are_compared():
    class Table(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = np.full(4, 1.0 + RANK, "float32")

        def call(self, x):
            return keras.ops.multiply(x, keras.ops.convert_to_tensor(self.table))

    text = fit(*ddl.split_data(*data()), new_model(None, Table()))
    assert (".table on rank" in text) == (SIZE > 1), text


if __name__ == "__main__":
    run_checks(globals())
