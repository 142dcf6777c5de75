"""Metrics, and the decisions taken on them, are those of one process that has all samples."""

import contextlib
import functools
import io
import itertools
import pathlib
import re
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf
from fits import COMM, RANK, SIZE, Spy, both, fails, in_shared_folder
from mpi import by_the_root, run_checks
from ranks import assert_same_on_all
from steps import fit_by_the_root, gradients_of, stateful

import easyddl as ddl
from easyddl.training.metrics import metrics

N = 4  # samples a rank takes in a step
STEPS = 5
FEATURES = 6
CLASSES = 4

m = keras.metrics

BINARY = [
    m.BinaryAccuracy, m.BinaryCrossentropy, m.BinaryIoU, m.AUC, m.Precision, m.Recall,
    m.TruePositives, m.TrueNegatives, m.FalsePositives, m.FalseNegatives,
    lambda: m.SensitivityAtSpecificity(0.5), lambda: m.SpecificityAtSensitivity(0.5),
    lambda: m.PrecisionAtRecall(0.5), lambda: m.RecallAtPrecision(0.5), m.Hinge, m.SquaredHinge,
    lambda: m.AUC(curve="PR", name="pr"), lambda: m.F1Score(threshold=0.5, average="micro"),
    lambda: m.FBetaScore(beta=2.0, threshold=0.5, average="micro", name="fbeta"),
    m.Accuracy, lambda: m.IoU(num_classes=2, target_class_ids=[1]),
]  # fmt: skip
SPARSE = [
    m.SparseCategoricalAccuracy, m.SparseCategoricalCrossentropy,
    lambda: m.SparseTopKCategoricalAccuracy(k=3),
    lambda: m.SparseTopKCategoricalAccuracy(k=2, name="top2"),
    lambda: m.MeanIoU(num_classes=CLASSES, sparse_y_pred=False),
]  # fmt: skip
CATEGORICAL = [
    m.CategoricalAccuracy, m.CategoricalCrossentropy, lambda: m.TopKCategoricalAccuracy(k=3),
    m.CategoricalHinge,
    m.KLDivergence, m.Poisson, lambda: m.F1Score(average="macro"),
    lambda: m.OneHotMeanIoU(num_classes=CLASSES),
    lambda: m.OneHotIoU(num_classes=CLASSES, target_class_ids=[0, 2]),
    lambda: m.F1Score(average="weighted", name="weighted_f1"),
]  # fmt: skip
REGRESSION = [
    m.MeanSquaredError, m.MeanAbsoluteError, m.MeanAbsolutePercentageError,
    m.MeanSquaredLogarithmicError, m.RootMeanSquaredError, m.LogCoshError, m.CosineSimilarity,
    m.R2Score,
]  # fmt: skip
# Keras 3.10 and later.
for _name in ("PearsonCorrelation", "ConcordanceCorrelation"):
    if hasattr(m, _name):
        REGRESSION.append(getattr(m, _name))


def new_model(outputs, activation, loss, wanted, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(outputs, activation=activation),
        ]
    )
    arguments = {"optimizer": keras.optimizers.SGD(0.05), **arguments}
    model.compile(loss=loss, metrics=[make() for make in wanted], **arguments)
    return model


def kinds():
    """Models with their metrics, and what makes labels of random numbers."""
    return {
        "binary": (
            lambda: new_model(1, "sigmoid", "binary_crossentropy", BINARY),
            lambda z: (z[:, :1] > 0).astype("float32"),
        ),
        "sparse": (
            lambda: new_model(CLASSES, "softmax", "sparse_categorical_crossentropy", SPARSE),
            lambda z: np.argmax(z[:, :CLASSES], -1)[:, None],
        ),
        "categorical": (
            lambda: new_model(CLASSES, "softmax", "categorical_crossentropy", CATEGORICAL),
            lambda z: np.eye(CLASSES, dtype="float32")[np.argmax(z[:, :CLASSES], -1)],
        ),
        "regression": (
            lambda: new_model(2, "softplus", "mse", REGRESSION),
            lambda z: np.abs(z[:, :2]).astype("float32") + 0.1,
        ),
    }


def samples(count, seed, label):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, FEATURES)).astype("float32")
    return x, label(x + 0.5 * random.standard_normal(x.shape))


def uneven_part(*arrays):
    """This rank's part: each has twice as many samples as the one before."""
    count = len(arrays[0])
    starts = [count * (2**rank - 1) // (2**SIZE - 1) for rank in range(SIZE + 1)]
    return tuple(array[starts[RANK] : starts[RANK + 1]] for array in arrays)


def assert_alike(mine, expected, names=None):
    # Keras counts the metrics of a name in a process: auc, auc_1.
    mine, expected = ({re.sub(r"_\d+$", "", k): v for k, v in d.items()} for d in (mine, expected))
    assert set(mine) == set(expected), (set(mine), set(expected))
    for name in names or expected:
        np.testing.assert_allclose(
            np.asarray(mine[name], "float64"), np.asarray(expected[name], "float64"),
            rtol=1e-5, atol=1e-6, err_msg=name,
        )  # fmt: skip


def report_numbers(model):
    """Has Keras report what a metric is, where it reports the variable that the next steps change.

    It does so on PyTorch with the metrics that count, such as FalseNegatives.
    """
    original = model._get_metrics_result_or_logs

    def results(logs):
        return {
            key: np.array(keras.ops.convert_to_numpy(value))
            for key, value in original(logs).items()
        }

    object.__setattr__(model, "_get_metrics_result_or_logs", results)


def assert_metrics_of(kind):
    make, label = kinds()[kind]
    train, held_out = samples(N * SIZE * STEPS, 1, label), samples(29, 2, label)
    model = make()
    history = model.fit(
        *ddl.split_data(*train), batch_size=N, epochs=2, shuffle=False, verbose=0,
        validation_data=uneven_part(*held_out), callbacks=both(),
    ).history  # fmt: skip
    alone = make()
    report_numbers(alone)
    expected = fit_by_the_root(
        alone, *train, batch_size=N * SIZE, epochs=2, shuffle=False, verbose=0,
        validation_data=held_out,
    ).history  # fmt: skip
    assert_alike(history, expected)
    everyone = COMM.allgather({key: np.asarray(value) for key, value in history.items()})
    for key, value in everyone[0].items():
        np.testing.assert_array_equal(np.asarray(history[key]), value, err_msg=key)
    found = model.evaluate(
        *uneven_part(*held_out), batch_size=3, verbose=0, return_dict=True,
        callbacks=[ddl.DDLCallback()],
    )  # fmt: skip
    wanted = by_the_root(alone.evaluate, *held_out, verbose=0, return_dict=True)
    assert_alike(found, wanted)


def check_every_metric_of_two_classes():
    assert_metrics_of("binary")


def check_every_metric_of_numbered_classes():
    assert_metrics_of("sparse")


def check_every_metric_of_classes():
    assert_metrics_of("categorical")


def check_every_metric_of_numbers():
    assert_metrics_of("regression")


def check_unequal_last_batches():
    # 4 + 4 + some samples: the last batches differ, and weigh what they hold.
    make, label = kinds()["sparse"]
    counts = [8 + (rank % 3) + 1 for rank in range(SIZE)]
    x, y = samples(sum(counts), 5, label)
    bounds = np.cumsum([0, *counts])
    # One process takes in each step what all ranks take in it.
    steps = [
        np.concatenate([np.arange(b, e)[4 * i : 4 * i + 4] for b, e in itertools.pairwise(bounds)])
        for i in range(3)
    ]  # fmt: skip
    mine = slice(bounds[RANK], bounds[RANK + 1])
    model = make()
    history = model.fit(
        x[mine], y[mine], batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=both()
    ).history
    alone = make()
    batches = ((x[step], y[step]) for _ in range(2) for step in steps)
    wanted = fit_by_the_root(
        alone, batches, steps_per_epoch=3, epochs=2, shuffle=False, verbose=0
    ).history
    for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
    assert_alike(history, wanted, ["loss", "sparse_categorical_accuracy"])


class Largest(keras.metrics.Metric):
    """The largest prediction. It declares nothing of how its states become one."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))

    def result(self):
        return keras.ops.convert_to_tensor(self.largest)


def evaluated(model, x, y, **arguments):
    return model.evaluate(
        x, y, verbose=0, return_dict=True, callbacks=[ddl.DDLCallback()], **arguments
    )


def with_metric(metric):
    model = new_model(1, "sigmoid", "mse", [lambda: metric])
    x, y = samples(8 * SIZE, 3, lambda z: (z[:, :1] > 0).astype("float32"))
    x = x * np.linspace(0.1, 2, len(x), dtype="float32")[:, None]
    return model, x, y


def check_a_metric_of_ones_own_is_warned_of_once():
    class Mine(Largest):
        pass

    model, x, y = with_metric(Mine(name="mine"))
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        found = evaluated(model, *ddl.split_data(x, y))
        evaluated(model, *ddl.split_data(x, y))
    told = text.getvalue().count("'mine' is not Keras's own (Mine)")
    assert told == (1 if RANK == 0 and SIZE > 1 else 0), text.getvalue()
    each = [float(model.predict(x[rank::SIZE], verbose=0).max()) for rank in range(SIZE)]
    np.testing.assert_allclose(found["mine"], np.mean(each), rtol=1e-5)


def check_a_metric_of_ones_own_that_is_registered():
    class ByDict(Largest):
        pass

    @ddl.register_metric(merge=lambda states: [max(state[0] for state in states)])
    class ByFunction(Largest):
        pass

    assert ddl.register_metric(ByDict, merge={"largest": "max"}) is ByDict
    for kind in (ByDict, ByFunction):
        model, x, y = with_metric(kind(name="mine"))
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            found = evaluated(model, *ddl.split_data(x, y))
        assert "mine" not in text.getvalue()
        want = model.predict(x, verbose=0).max()
        np.testing.assert_allclose(found["mine"], want, rtol=1e-6)


def check_each_merge_by_name():
    for merge, numpys in [("sum", sum), ("mean", np.mean), ("min", min), ("max", max)]:

        class Mine(Largest):
            pass

        ddl.register_metric(Mine, merge=merge)
        model, x, y = with_metric(Mine(name="mine"))
        found = evaluated(model, *ddl.split_data(x, y))
        each = [float(model.predict(x[rank::SIZE], verbose=0).max()) for rank in range(SIZE)]
        assert len(set(each)) == SIZE  # so that the merges differ
        np.testing.assert_allclose(found["mine"], numpys(each), rtol=1e-5)


class Seen(keras.metrics.Metric):
    """The number of samples."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign(self.count + keras.ops.shape(y_true)[0])

    def result(self):
        return keras.ops.convert_to_tensor(self.count)


def that_lasts(kind):
    """A class of metrics that are not reset when an epoch or an evaluation begins."""
    return type("Lasting", (kind,), {"reset_state": lambda metric: None})


def check_metrics_that_last():
    by_name, by_function = that_lasts(Seen), that_lasts(Seen)
    ddl.register_metric(by_name, merge="sum")
    ddl.register_metric(by_function, merge=lambda states: [sum(state[0] for state in states)])
    label = kinds()["binary"][1]
    train, held_out = samples(N * SIZE * STEPS, 1, label), samples(7 * SIZE, 2, label)

    def make():
        wanted = [
            *(lambda: by_name(name="by_name"), lambda: by_function(name="by_function")),
            lambda: that_lasts(m.TruePositives)(name="positives"),
            lambda: that_lasts(m.MeanSquaredError)(name="error"),
            m.BinaryAccuracy,
        ]
        return new_model(1, "sigmoid", "binary_crossentropy", wanted)

    def train_twice(fit, train, held_out, **arguments):
        arguments = {"shuffle": False, "verbose": 0, **arguments}
        first = fit(*train, epochs=2, validation_data=held_out, **arguments).history
        return first, fit(*train, epochs=3, **arguments).history

    model, alone = make(), make()
    report_numbers(alone)
    found = train_twice(
        lambda *data, **arguments: model.fit(*data, callbacks=both(), **arguments),
        *(ddl.split_data(*train), ddl.split_data(*held_out, remainder="keep")),
        batch_size=N,
    )
    wanted = train_twice(
        functools.partial(fit_by_the_root, alone), train, held_out, batch_size=N * SIZE
    )
    for mine, expected in zip(found, wanted, strict=True):
        assert_alike(mine, expected)


def check_a_subclass_that_updates_as_keras_does():
    class Off(keras.metrics.MeanMetricWrapper):
        def __init__(self, name="off", **arguments):
            super().__init__(lambda t, p: keras.ops.abs(t - p), name, **arguments)

    assert metrics.is_exact(Off())
    assert metrics.is_exact(keras.metrics.AUC())
    assert not metrics.is_exact(Largest())
    model, x, y = with_metric(Off())
    found = evaluated(model, *uneven_part(x, y))
    want = np.abs(model.predict(x, verbose=0) - y).mean()
    np.testing.assert_allclose(found["off"], want, rtol=1e-5)


class Spread(keras.metrics.Metric):
    """The largest and the smallest prediction: a vector, of variables of its own."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.spread = self.add_variable((2,), "zeros", name="spread")

    def update_state(self, y_true, y_pred, sample_weight=None):
        found = keras.ops.stack([keras.ops.max(y_pred), -keras.ops.min(y_pred)])
        self.spread.assign(keras.ops.maximum(self.spread, found))

    def result(self):
        return keras.ops.convert_to_tensor(self.spread)


def quietly(call):
    """What a call returns, without what it says."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        return call()


def check_a_vector_is_the_mean_of_those_that_have_samples():
    model, x, y = with_metric(Spread(name="spread"))
    held_out = ddl.split_data(x, y)
    # The last rank trains without a batch, and validates.
    count = 0 if SIZE > 1 and RANK == SIZE - 1 else N
    arguments = {"shuffle": False, "verbose": 0, "callbacks": both(), "validation_data": held_out}
    history = quietly(lambda: model.fit(dataset(x[:count], y[:count]), **arguments).history)
    keras.utils.set_random_seed(3)
    alone = new_model(1, "sigmoid", "mse", [])
    first = alone.predict(x[:N], verbose=0)
    want = [first.max(), max(0, -first.min())]
    np.testing.assert_allclose(history["spread"][0], want, rtol=1e-5)
    parts = [model.predict(x[rank::SIZE], verbose=0) for rank in range(SIZE)]
    want = [[part.max(), max(0, -part.min())] for part in parts]
    np.testing.assert_allclose(history["val_spread"][0], np.mean(want, 0), rtol=1e-5)
    assert_same_on_all(history["spread"][0])
    assert_same_on_all(history["val_spread"][0])


def dataset(x, y):
    """Of a length that nobody knows."""
    signature = (tf.TensorSpec((None, FEATURES), "float32"), tf.TensorSpec((None, 1), "float32"))
    batches = [(x[i : i + N], y[i : i + N]) for i in range(0, len(x), N)]
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


def check_a_vector_of_keras_own_is_exact():
    def make():
        # Beside one whose value is the mean of the ranks' own.
        wanted = [lambda: m.F1Score(average=None), lambda: Largest(name="mine")]
        return new_model(CLASSES, "softmax", "categorical_crossentropy", wanted)

    x, y = samples(29, 2, kinds()["categorical"][1])
    found = quietly(lambda: evaluated(make(), *uneven_part(x, y)))
    expected = make().evaluate(x, y, verbose=0, return_dict=True)
    assert_alike(found, expected, ["loss", "f1_score"])
    assert np.shape(found["f1_score"]) == (CLASSES,)


def check_a_vector_of_other_shapes_on_other_ranks():
    class Each(Largest):
        def result(self):
            return keras.ops.zeros((2 + RANK % 2,)) + self.largest

    model, x, y = with_metric(Each(name="each"))
    if SIZE > 1:
        error = fails(lambda: quietly(lambda: evaluated(model, *ddl.split_data(x, y))))
        assert isinstance(error, ValueError), error
        assert "'each' must have the same shape" in str(error) and "0: (2,), 1: (3,)" in str(error)
        assert_same_on_all(str(error))


class Held(keras.metrics.Metric):
    """Has metrics of Keras's in a list, under the name that Keras's own containers have."""

    def __init__(self, counts, **arguments):
        super().__init__(**arguments)
        self.metrics = [keras.metrics.Mean(name="one"), keras.metrics.Mean(name="two")]
        if counts:
            self.updates = self.add_variable((), "zeros", name="updates")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.metrics[0].update_state(y_pred)
        self.metrics[1].update_state(keras.ops.square(y_pred), sample_weight)
        if len(self._variables):
            self.updates.assign_add(1.0)

    def result(self):
        ratio = self.metrics[1].result() / self.metrics[0].result()
        return ratio * self.updates if len(self._variables) else ratio


def check_a_metric_that_holds_others():
    model, x, y = with_metric(Held(False, name="held"))
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        found = evaluated(model, *uneven_part(x, y), batch_size=N)
    assert "held" not in text.getvalue()
    predicted = model.predict(x, verbose=0)
    want = np.square(predicted).mean() / predicted.mean()
    np.testing.assert_allclose(found["held"], want, rtol=1e-5)
    # With a variable of its own that nobody knows how to merge, it is the mean of the ranks' own.
    model, x, y = with_metric(Held(True, name="held"))
    found = quietly(lambda: evaluated(model, *ddl.split_data(x, y)))
    each = [model.predict(x[rank::SIZE], verbose=0) for rank in range(SIZE)]
    want = np.mean([np.square(part).mean() / part.mean() for part in each])
    np.testing.assert_allclose(found["held"], want, rtol=1e-5)
    assert_same_on_all(found["held"])


def check_register_metric_takes_classes_and_names():
    for wrong, kind in [((Spy, "max"), TypeError), ((Largest(), "max"), TypeError),
                        ((Largest, "last"), ValueError), ((Largest, {"largest": 3}), ValueError),
                        ((Largest, None), ValueError)]:  # fmt: skip
        error = fails(lambda w=wrong: ddl.register_metric(w[0], merge=w[1]))
        assert isinstance(error, kind) and "Received" in str(error), error


def check_evaluate_returns_what_keras_does():
    make, label = kinds()["sparse"]
    model = make()
    x, y = samples(4 * SIZE, 4, label)
    part = ddl.split_data(x, y)
    by_name = evaluated(model, *part)
    listed = model.evaluate(*part, verbose=0, callbacks=[ddl.DDLCallback()])
    np.testing.assert_allclose(listed, model.evaluate(x, y, verbose=0), rtol=1e-5)
    np.testing.assert_allclose(sorted(listed), sorted(by_name.values()), rtol=1e-6)
    # Alone it is this rank's own: with nobody to wait for.
    if RANK == SIZE - 1:
        alone = model.evaluate(*part, verbose=0, return_dict=True)
        if SIZE > 1:
            assert abs(alone["loss"] - by_name["loss"]) > 1e-4
        model.predict(x, verbose=0)


def check_evaluate_where_a_rank_has_no_batch():
    make, label = kinds()["sparse"]
    model = make()
    evaluated(model, *ddl.split_data(*samples(4 * SIZE, 4, label)))  # Keras builds the metrics
    x, y = samples(3, 4, label)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(3)
    part = ddl.split_data(batches, remainder="keep")
    found = quietly(lambda: evaluated(model, part, None))  # Keras is surprised that data end
    want = model.evaluate(x, y, verbose=0, return_dict=True)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    assert_same_on_all(found)


def check_evaluate_inside_of_a_fit_is_ones_own():
    class OnTheRoot(keras.callbacks.Callback):
        def __init__(self, when):
            super().__init__()
            self.found = []
            setattr(self, when, self.evaluate)

        def evaluate(self, *args, **kwargs):
            if RANK == 0:
                self.found.append(self.model.evaluate(x, y, verbose=0))

    make, label = kinds()["sparse"]
    x, y = samples(N * SIZE * 2, 6, label)
    for when in ("on_train_batch_end", "on_epoch_end", "on_epoch_begin", "on_test_end"):
        spy = OnTheRoot(when)
        history = make().fit(
            *ddl.split_data(x, y), batch_size=N, shuffle=False, verbose=0,
            validation_data=ddl.split_data(x, y), callbacks=both(spy),
        ).history  # fmt: skip
        assert COMM.allgather(history) == [history] * SIZE
        assert (len(spy.found) > 0) == (RANK == 0)


def check_several_outputs():
    def make():
        keras.utils.set_random_seed(4)
        x = keras.layers.Input((FEATURES,))
        one = keras.layers.Dense(1, name="one")(x)
        two = keras.layers.Dense(CLASSES, activation="softmax", name="two")(x)
        model = keras.Model(x, {"one": one, "two": two})
        model.compile(
            "sgd",
            {"one": "mse", "two": "sparse_categorical_crossentropy"},
            metrics={"one": ["mae"], "two": ["accuracy"]},
            weighted_metrics={"one": ["mse"], "two": []},
        )
        return model

    def data(count, seed):
        x, z = samples(count, seed, lambda z: z)
        return x, {"one": z[:, :1], "two": np.argmax(z[:, :CLASSES], -1)}

    (x, y), held_out = data(N * SIZE * 3, 7), data(17, 8)
    parts = uneven_part(held_out[0], held_out[1]["one"], held_out[1]["two"])
    model = make()
    history = model.fit(
        *ddl.split_data(x, y), batch_size=N, shuffle=False, verbose=0, callbacks=both(),
        validation_data=(parts[0], {"one": parts[1], "two": parts[2]}),
    ).history  # fmt: skip
    wanted = make().fit(
        x, y, batch_size=N * SIZE, shuffle=False, verbose=0, validation_data=held_out,
        # At once: Keras does not weigh outputs' own losses by the sizes of batches.
        validation_batch_size=17,
    ).history  # fmt: skip
    assert_alike(history, wanted)


def check_a_train_step_with_logs_of_its_own():
    class Mine(keras.Sequential):
        def train_step(self, *arguments):
            result = super().train_step(*arguments)
            if isinstance(result, tuple):  # on JAX
                logs, state = result
                return {**logs, "rank": float(RANK)}, state
            return {**result, "rank": float(RANK)}

    model = Mine([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = samples(N * SIZE * 2, 9, lambda z: z[:, :1])
    history = model.fit(
        *ddl.split_data(x, y), batch_size=N, verbose=0, callbacks=both()
    ).history  # fmt: skip
    assert history["rank"] == [np.mean(range(SIZE))]
    assert COMM.allgather(history) == [history] * SIZE


class OfTheGuide(keras.Sequential):
    """Its train_step is that of Keras's guide to customizing `fit`."""

    @stateful
    def train_step(self, data):
        x, y = data

        def compute():
            self.predicted = self(x, training=True)
            return self.compute_loss(y=y, y_pred=self.predicted)

        loss, found = gradients_of(compute, self.trainable_variables)
        self.optimizer.apply(found, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics} | self.more(loss)

    def more(self, loss):
        return {}


def check_a_train_step_that_returns_metrics_by_name():
    class More(OfTheGuide):
        """Returns what is no metric, under a metric's name, and a string."""

        def more(self, loss):
            return {"loss": loss, "pair": keras.ops.stack([loss, 2 * loss]), "what": "text"}

    def make(kind):
        keras.utils.set_random_seed(5)
        model = kind([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], run_eagerly=kind is More)
        return model

    def trained(kind, x, y, batch, callbacks):
        arguments = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": callbacks}
        return make(kind).fit(x, y, batch_size=batch, validation_data=(x, y), **arguments).history

    x, y = samples(N * SIZE * 3, 9, lambda z: z[:, :1])
    for kind in (OfTheGuide, More):
        spy, text = Spy(), io.StringIO()
        with contextlib.redirect_stderr(text):
            history = trained(kind, *ddl.split_data(x, y), N, both(spy))
        expected = trained(kind, x, y, N * SIZE, [])
        # Of the last step: parts are as large, so that the mean is that of one process.
        assert_alike(history, {key: expected[key] for key in expected if key != "what"})
        assert [logs["mae"] for logs in spy.seen] == history["mae"]
        told = text.getvalue().count("'what' is not a number")
        assert told == (1 if kind is More and RANK == 0 else 0) or SIZE == 1, text.getvalue()
        for values in history.values():
            assert_same_on_all(np.array(values))


def check_callbacks_between_see_what_all_have():
    @in_shared_folder
    def check(folder):
        class OnTestEnd(keras.callbacks.Callback):
            def on_test_end(self, logs=None):
                self.seen = dict(logs)

        make, label = kinds()["sparse"]
        x, y = samples(N * SIZE * 2, 10, label)
        spy, tested, board = Spy(), OnTestEnd(), str(folder / f"{RANK}.csv")
        history = make().fit(
            *ddl.split_data(x, y), batch_size=N, epochs=2, verbose=0,
            validation_data=uneven_part(x, y),
            callbacks=both(spy, tested, keras.callbacks.CSVLogger(board)),
        ).history  # fmt: skip
        for key, values in history.items():
            assert [logs[key] for logs in spy.seen] == values
        assert tested.seen["loss"] == history["val_loss"][-1]
        if RANK == 0:
            rows = np.genfromtxt(board, delimiter=",", names=True)
            np.testing.assert_allclose(rows["val_loss"], history["val_loss"], rtol=1e-6)
            np.testing.assert_allclose(rows["loss"], history["loss"], rtol=1e-6)

    check()


def decide(folder, x, y, held_out, batch, wrap):
    """Trains with the callbacks that decide by the validation, and tells when they did."""
    model = new_model(1, None, "mse", [], optimizer=keras.optimizers.SGD(0.4))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=4, min_delta=0.01)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.01)
    best = keras.callbacks.ModelCheckpoint(
        str(folder / "best-{epoch}.weights.h5"), save_best_only=True, save_weights_only=True,
        monitor="val_loss",
    )  # fmt: skip
    history = model.fit(
        x, y, batch_size=batch, epochs=30, shuffle=False, verbose=0, validation_data=held_out,
        callbacks=wrap(stop, plateau, best),
    )  # fmt: skip
    rates = history.history["learning_rate"]
    saved = sorted(path.name for path in pathlib.Path(folder).iterdir())
    return stop.stopped_epoch, len(history.epoch), np.round(rates, 7).tolist(), saved


def check_decisions_come_at_the_same_epoch():
    @in_shared_folder
    def check(folder):
        x, y = samples(N * SIZE * STEPS, 11, lambda z: np.sin(3 * z[:, :1]))
        held_out = samples(23, 12, lambda z: np.sin(3 * z[:, :1]))
        shared, own = folder / "all", pathlib.Path(tempfile.mkdtemp(dir=folder))
        if RANK == 0:
            shared.mkdir()
        COMM.Barrier()
        part = ddl.split_data(x, y)
        mine = decide(shared, *part, uneven_part(*held_out), N, both)
        COMM.Barrier()
        saved = sorted(path.name for path in shared.iterdir())
        alone = decide(own, x, y, held_out, N * SIZE, lambda *callbacks: list(callbacks))
        assert mine[:3] == alone[:3], (mine, alone)
        assert saved == alone[3], (saved, alone[3])
        assert mine[0] > 0 and len(set(mine[2])) > 1, "the callbacks must have acted"

    check()


def check_samples_and_classes_that_weigh():
    make, label = kinds()["sparse"]
    x, y = samples(N * SIZE * STEPS, 13, label)
    weights = np.random.default_rng(14).random(len(x)).astype("float32")
    classes = {0: 1.0, 1: 3.0, 2: 0.5, 3: 2.0}
    held_out = (*samples(7 * SIZE + 1, 15, label), weights[: 7 * SIZE + 1])
    validation = {"validation_data": held_out}
    for arguments in ({"class_weight": classes}, {"sample_weight": weights}, validation):
        model = make()
        part = ddl.split_data(x, y, arguments.get("sample_weight"))
        mine = dict(arguments)
        if part[2] is not None:
            mine["sample_weight"] = part[2]
        if "validation_data" in mine:
            mine["validation_data"] = ddl.split_data(*held_out, remainder="keep")
        history = model.fit(
            *part[:2], batch_size=N, shuffle=False, verbose=0, callbacks=both(), **mine
        ).history
        alone = make()
        arguments |= {"batch_size": N * SIZE, "shuffle": False, "verbose": 0}
        wanted = fit_by_the_root(alone, x, y, **arguments).history
        assert_alike(history, wanted)
        for weight, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    run_checks(globals())
