"""What `model.fit()` does with easyddl's callbacks, on every rank of one job."""

import collections
import contextlib
import copy
import functools
import io
import os
import pathlib
import shutil
import tempfile
import types
import warnings

import keras
import numpy as np
from fits import (
    BATCH,
    COMM,
    RANK,
    SIZE,
    Spy,
    assert_replicas_are_equal,
    both,
    data,
    data_of,
    fails,
    fit,
    in_shared_folder,
    new_model,
)
from mpi import run_checks
from steps import BACKEND, KERAS, TAKES_SEVERAL_STEPS

import easyddl as ddl
from easyddl.compat import check, keras_callback, names
from easyddl.reducer import gradient_reducer
from easyddl.runtime import notices
from easyddl.training.step import inner_optimizers, optimizer_hook


def check_keras_has_all_private_names_in_use():
    assert check.missing() == [], names.message(check.missing())


class Unbuilt(keras.Model):
    def __init__(self, layers):
        super().__init__()
        self.first, self.second = layers

    def call(self, x):
        return self.second(self.first(x))


def check_models_without_input_and_unbuilt_optimizers():
    for kind in (keras.Sequential, Unbuilt):
        keras.utils.set_random_seed(RANK)
        model = kind([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        assert not model.built
        assert not model.optimizer.built
        fit(model, epochs=2)
        assert_replicas_are_equal(model)


def check_root_rank_is_whom_all_start_from():
    keras.utils.set_random_seed(RANK)
    model = new_model(optimizer=keras.optimizers.SGD(0.0))  # weights stay what was broadcast
    want = COMM.bcast(model.get_weights(), SIZE - 1)
    x, y = data()
    last = ddl.DDLGlobalVariablesCallback(root_rank=SIZE - 1)
    model.fit(x, y, verbose=0, callbacks=[ddl.DDLCallback(), last])
    for weight, wanted in zip(model.get_weights(), want, strict=True):
        np.testing.assert_array_equal(weight, wanted)


def check_a_second_fit_goes_on():
    keras.utils.set_random_seed(RANK)
    model = new_model(optimizer="adam")
    fit(model)
    fit(model)
    assert int(model.optimizer.iterations.numpy()) == 6
    assert_replicas_are_equal(model)


def check_optimizer_variables_are_broadcast():
    keras.utils.set_random_seed(RANK)
    model = new_model(optimizer=keras.optimizers.SGD(0.1 * (RANK + 1), momentum=0.9))
    fit(model)
    rates = COMM.allgather(float(model.optimizer.learning_rate.numpy()))
    np.testing.assert_allclose(rates, 0.1)


def check_each_rank_draws_its_own_dropout_masks():
    keras.utils.set_random_seed(5)  # equal seeds, and so equal masks, without easyddl
    dropout = keras.layers.Dropout(0.5)
    model = new_model(layers=[dropout, keras.layers.Dense(1)])
    root_seed = COMM.bcast(int(dropout.seed_generator.state.numpy()[0]))
    fit(model)
    fit(model)
    seeds = COMM.allgather(int(dropout.seed_generator.state.numpy()[0]))
    assert seeds == [(root_seed + rank) % 2**32 for rank in range(SIZE)]
    if BACKEND != "torch":  # where it draws from PyTorch's generator, the root's after the fit
        masks = COMM.allgather(np.asarray(dropout(np.ones((1, 64), "float32"), training=True)))
        assert len({mask.tobytes() for mask in masks}) == SIZE
    assert_replicas_are_equal(model)


def check_validation_on_the_root_only():
    x, y = data()
    validation = (x, y) if RANK == 0 else None
    history = fit(new_model(), validation_data=validation, epochs=2).history
    assert len(history["val_loss"]) == 2
    assert COMM.allgather(history) == [history] * SIZE
    # The others do not know how often.
    arguments = {"validation_freq": 2, "validation_data": validation} if RANK == 0 else {}
    history = fit(new_model(), epochs=4, **arguments).history
    assert len(history["val_loss"]) == 2
    assert COMM.allgather(history) == [history] * SIZE


def check_one_rank_that_stops_stops_all():
    class StopOnLast(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if RANK == SIZE - 1 and epoch == 1:
                self.model.stop_training = True

    history = fit(new_model(), StopOnLast(), epochs=6)
    assert len(history.history["loss"]) == 2


class ByWorkers(keras.utils.PyDataset):
    """Batches of the rows of some ranks, read ahead by threads."""

    def __init__(self, rows, batches):
        super().__init__(workers=2)
        self.rows, self.batches = rows, batches

    @property
    def num_batches(self):
        return self.batches  # `None` where they never end

    def __getitem__(self, index):
        x = np.random.default_rng(index).standard_normal((BATCH * SIZE, 6)).astype("float32")
        return x[self.rows], x[self.rows].sum(1, keepdims=True)


def check_workers_read_each_epoch_from_its_beginning():
    if KERAS < (3, 6):
        return  # which ends the epochs of a PyDataset with workers otherwise

    def make():
        keras.utils.set_random_seed(2)
        return new_model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))

    # Keras alone builds a model by a batch out of the workers' queue, on JAX and PyTorch, and
    # does not train on it then. So a process is compared that takes them in order by itself.
    for batches in (3, None):
        model, alone = make(), make()
        mine = ByWorkers(np.arange(RANK, BATCH * SIZE, SIZE), batches)
        steps = {} if batches else {"steps_per_epoch": 3}
        model.fit(mine, epochs=2, shuffle=False, verbose=0, callbacks=both(), **steps)
        everything = ByWorkers(slice(None), batches)
        for step in range(6):
            alone.train_on_batch(*everything[step % (batches or 6)])
        assert_replicas_are_equal(model)
        for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(weight, want, rtol=1e-5, atol=1e-6)


def check_batches_of_a_class_that_is_no_modules():
    import tensorflow as tf

    # Each rank has a class of its own. The last one has no batch.
    pair = collections.namedtuple("Pair", "left right")
    signature = (
        {"pair": pair(*[tf.TensorSpec((None, 6), "float32")] * 2)},
        pair(*[tf.TensorSpec((None, 1), "float32")] * 2),
    )
    everything = [
        np.random.default_rng(rank).standard_normal((2, BATCH, 6)).astype("float32")
        for rank in range(SIZE)
    ]

    def dataset(parts, count=2):
        left, right = np.concatenate(parts, axis=1)
        sums = [each.sum(1, keepdims=True) for each in (left, right)]
        batch = ({"pair": pair(left, right)}, pair(*sums))
        return tf.data.Dataset.from_generator(lambda: [batch] * count, output_signature=signature)

    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return pair(self.dense(x["pair"].left), self.dense(x["pair"].right))

    def make():
        keras.utils.set_random_seed(4)
        model = Twice()
        # One for each output.
        model.compile(keras.optimizers.SGD(0.1), ["mse", "mae"])
        return model

    model, alone = make(), make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras is surprised that data end
        arguments = {"epochs": 2, "shuffle": False, "verbose": 0}
        count = 0 if RANK > 0 and RANK == SIZE - 1 else 2
        model.fit(dataset([everything[RANK]], count), callbacks=both(), **arguments)
        alone.fit(dataset(everything[: max(1, SIZE - 1)]), **arguments)
    assert_replicas_are_equal(model)
    for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-5, atol=1e-6)


def check_progress_bar_is_the_roots():
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        fit(new_model(), verbose=2)
    assert ("loss" in output.getvalue()) == (RANK == 0)


def check_stock_callbacks_write_on_the_root():
    @in_shared_folder
    def check(shared):
        mine = shared / str(RANK)  # what a rank writes shows in its own folder
        mine.mkdir()
        callbacks = [
            keras.callbacks.ModelCheckpoint(str(mine / "best.keras"), save_best_only=True,
                                            monitor="loss"),
            keras.callbacks.CSVLogger(str(mine / "log.csv")),
            keras.callbacks.TensorBoard(str(mine / "board")),
            keras.callbacks.BackupAndRestore(str(mine / "backup"), delete_checkpoint=False),
        ]  # fmt: skip
        kinds = [type(callback) for callback in callbacks]
        fit(new_model(), *callbacks, epochs=2)
        names = {path.name for path in mine.iterdir()}
        assert names == ({"best.keras", "log.csv", "board", "backup"} if RANK == 0 else set())
        assert [type(callback) for callback in callbacks] == kinds
        # As they were: used without easyddl they write again, on any rank.
        new_model().fit(*data(), verbose=0, callbacks=callbacks[1:2])
        assert (mine / "log.csv").exists()

    check()


def check_backup_resumes_on_all_ranks():
    @in_shared_folder
    def check(shared):
        mine = shared / str(RANK)
        mine.mkdir()

        class Crash(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2:
                    raise RuntimeError("crash")

        def backup():
            return keras.callbacks.BackupAndRestore(str(mine / "backup"))

        keras.utils.set_random_seed(RANK)
        model = new_model(optimizer="adam")
        error = fails(lambda: fit(model, backup(), Crash(), epochs=4))
        assert str(error) == "crash"
        keras.utils.set_random_seed(RANK + 50)
        again = new_model(optimizer="adam")
        epochs = fit(again, backup(), epochs=4).epoch
        assert epochs == [2, 3], epochs
        assert int(again.optimizer.iterations.numpy()) == 12
        assert_replicas_are_equal(again)

    check()


def check_rank_zero_runs_on_the_root_only():
    spy = Spy()
    fit(new_model(), ddl.RankZero(spy), epochs=2)
    assert len(spy.seen) == (2 if RANK == 0 else 0)
    assert "callback" in str(fails(lambda: ddl.RankZero(Spy)))
    assert isinstance(fails(lambda: ddl.RankZero("x")), TypeError)


class Calls(keras.callbacks.Callback):
    """Notes the order in which the callbacks of a list begin to train, and to test."""

    def __init__(self, name, seen):
        super().__init__()
        self.name, self.seen = name, seen

    def on_train_begin(self, logs=None):
        # A callback that begins before the broadcast has weights of its own rank.
        self.seen.append((self.name, len(set(COMM.allgather(self.model.get_weights()[0].sum())))))

    def on_test_begin(self, logs=None):
        self.seen.append((self.name, 1))


def printed_by_the_root(action):
    """What an action prints on the root, where easyddl has not printed a line before."""
    notices._told.clear()
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        action()
    return COMM.bcast(printed.getvalue())


def check_callbacks_are_put_in_order():
    """As where a library appends callbacks of its own."""
    x, y = data()
    for order in ("<>ab", "a>b<"):
        seen = []
        mine = {name: Calls(name, seen) for name in "ab"}
        mine |= {"<": ddl.DDLCallback(check_replicas=1), ">": ddl.DDLGlobalVariablesCallback()}
        keras.utils.set_random_seed(RANK)
        model = new_model()
        callbacks = [mine[name] for name in order]
        given = list(callbacks)
        text = printed_by_the_root(
            lambda m=model, c=callbacks: m.fit(x, y, batch_size=BATCH, verbose=0, callbacks=c)
        )
        assert seen == [("a", SIZE), ("b", SIZE)], (order, seen)
        assert_replicas_are_equal(model)
        assert callbacks == given  # the user's list is left alone
        assert "easyddl: note: the callbacks run in the order [DDLCallback, Calls, Calls, " in text
        again = io.StringIO()
        with contextlib.redirect_stderr(again):
            model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=callbacks)
        assert "note" not in again.getvalue(), again.getvalue()


def check_callbacks_of_evaluate_are_put_in_order():
    model, seen, results = new_model(), [], []
    model.set_weights(COMM.bcast(model.get_weights()))
    x, y = data(1 + RANK)
    callbacks = [Calls("a", seen), ddl.DDLCallback()]
    text = printed_by_the_root(
        lambda: results.append(model.evaluate(x, y, verbose=0, callbacks=callbacks))
    )
    assert seen == [("a", 1)] and "in the order [DDLCallback, Calls]" in text, (seen, text)
    everyone = [data_of(1 + rank, rank) for rank in range(SIZE)]
    x, y = (np.concatenate(each) for each in zip(*everyone, strict=True))
    np.testing.assert_allclose(results[0], model.evaluate(x, y, verbose=0), rtol=1e-5)


def check_several_of_one_kind():
    x, y = data()
    for kind in (ddl.DDLCallback, ddl.DDLGlobalVariablesCallback):
        for callbacks in (both(kind()), [Spy(), *both(), kind()]):
            error = fails(lambda c=callbacks: new_model().fit(x, y, callbacks=c, verbose=0))
            assert isinstance(error, ValueError), error
            assert f"must contain only one {kind.__name__}: remove" in str(error), error


def check_deep_copies_are_new_callbacks():
    """KerasTuner fits with a deep copy of the callbacks, again for each trial."""
    spy = Spy()
    mine = both(ddl.RankZero(spy), ddl.ProgressCallback(), uneven="truncate", bucket_bytes=4096)
    mine[-1] = ddl.DDLGlobalVariablesCallback(root_rank=SIZE - 1)
    x, y = data()

    def copies_of_mine():
        copies = copy.deepcopy(mine)
        assert [type(each) for each in copies] == [type(each) for each in mine]
        assert (copies[0].uneven, copies[0].reduction.bucket_bytes) == ("truncate", 4096)
        assert copies[-1].root_rank == SIZE - 1
        assert all(keras_callback.model_of(each) is None for each in copies)
        return copies

    def trained(callbacks):
        keras.utils.set_random_seed(RANK)
        model = new_model()
        with contextlib.redirect_stderr(io.StringIO()):
            model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks)
        assert_replicas_are_equal(model)
        return model.get_weights()

    copies = copies_of_mine()
    first = trained(copies)
    assert not spy.seen  # the copy holds a copy of it
    assert len(copies[1].callback.seen) == (2 if RANK == 0 else 0)
    for found, wanted in zip(trained(mine), first, strict=True):
        np.testing.assert_array_equal(found, wanted)
    copies_of_mine()  # of callbacks that have been used


def check_a_callback_list():
    def lists(model, *callbacks):
        kind = keras.callbacks.CallbackList
        yield kind([*callbacks], add_history=True, model=model)
        yield kind([*callbacks], add_history=True, add_progbar=True, model=model, verbose=0,
                   epochs=9, steps=3)  # fmt: skip
        model.history = keras.callbacks.History()  # which Keras returns, and sets with a model
        yield kind([*callbacks])

    def make():
        keras.utils.set_random_seed(6)
        return new_model(metrics=["mae"])

    random = np.random.default_rng(8)
    x = random.standard_normal((3 * BATCH * SIZE, 6)).astype("float32")
    part = ddl.split_data(x, x.sum(1, keepdims=True))
    alone = make()
    expected = alone.fit(
        x, x.sum(1, keepdims=True), batch_size=BATCH * SIZE, epochs=2, shuffle=False, verbose=0
    ).history
    for place in range(3):
        model = make()
        spy, on_the_root = Spy(), Spy()
        callbacks = list(lists(model, *both(spy, ddl.RankZero(on_the_root))))[place]
        # A second time too: the list stays the user's.
        for _ in range(2):
            model.set_weights(make().get_weights())
            model.fit(
                *part, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
            )
            for name in expected:
                seen = [logs[name] for logs in spy.seen[-2:]]
                np.testing.assert_allclose(seen, expected[name], rtol=1e-5)
        assert on_the_root.seen == (spy.seen if RANK == 0 else [])
        assert_replicas_are_equal(model)
        for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(weight, want, rtol=1e-5, atol=1e-6)
        tested = keras.callbacks.CallbackList([ddl.DDLCallback()])
        found = model.evaluate(*part, verbose=0, return_dict=True, callbacks=tested)
        wanted = alone.evaluate(x, x.sum(1, keepdims=True), verbose=0, return_dict=True)
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)
    for mixed in ([Spy(), *both()], [*both(), Spy()]):
        model = new_model()
        for callbacks in lists(model, *mixed):
            model.fit(*part, callbacks=callbacks, verbose=0)
            names = [type(callback).__name__ for callback in callbacks.callbacks]
            assert names[:3] == ["DDLCallback", "Spy", "DDLGlobalVariablesCallback"], names
            assert_replicas_are_equal(model)
    error = fails(
        lambda: new_model().fit(
            *part, epochs=1 + RANK, verbose=0, callbacks=keras.callbacks.CallbackList(both())
        )
    )
    assert SIZE == 1 or "same `epochs`" in str(error), error


def check_last_alone_is_put_at_the_end():
    x, y = data()
    seen = []
    callbacks = [ddl.DDLGlobalVariablesCallback(), Calls("a", seen)]
    keras.utils.set_random_seed(RANK)
    model = new_model()
    text = printed_by_the_root(lambda: model.fit(x, y, callbacks=callbacks, verbose=0))
    assert seen == [("a", SIZE)] and "note: the callbacks run in the order" in text, (seen, text)


def check_class_in_place_of_an_instance():
    x, y = data()
    for name, callbacks in {
        "DDLCallback": [ddl.DDLCallback, ddl.DDLGlobalVariablesCallback()],
        "DDLGlobalVariablesCallback": [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback],
    }.items():
        error = fails(lambda c=callbacks: new_model().fit(x, y, callbacks=c, verbose=0))
        assert isinstance(error, TypeError), error
        assert f"ddl.{name}()" in str(error), error


def check_a_bad_root_rank():
    x, y = data()
    for wrong, kind in [(SIZE, ValueError), (-1, ValueError), ("0", TypeError)]:
        callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback(root_rank=wrong)]
        error = fails(lambda c=callbacks: new_model().fit(x, y, callbacks=c, verbose=0))
        assert isinstance(error, kind) and "root_rank" in str(error), error


class FitsAgain(keras.callbacks.Callback):
    """Trains the same model after the first epoch, on unequal data, without easyddl's callbacks."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            x = np.arange(32 * (2 if RANK == 0 else 1), dtype="float32").reshape(-1, 4) / 100
            self.history = self.model.fit(x, x[:, :1], batch_size=8, verbose=0).history


def check_a_plain_fit_of_the_same_model_within_a_fit():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(RANK).random((16, 4))
    again = FitsAgain()
    callbacks = [ddl.DDLCallback(), again, ddl.DDLGlobalVariablesCallback()]
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    assert again.history["loss"][0] > 0
    assert all(each == again.history for each in COMM.allgather(again.history))
    assert_replicas_are_equal(model)


def check_hook_ends_with_the_fit():
    model = new_model()
    plain = model.optimizer.apply
    fit(model)
    assert not optimizer_hook.is_hooked(model.optimizer)
    assert model.optimizer.apply == plain
    if RANK == 0:  # alone: would wait for ever if anything of the hook were left
        model.fit(*data(), verbose=0)
        model.train_on_batch(*data())
        model.evaluate(*data(), verbose=0)
        model.predict(data()[0], verbose=0)


def check_hook_ends_with_a_fit_that_raises():
    class Crash(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("caught by the user")

    model = new_model()
    assert isinstance(fails(lambda: fit(model, Crash())), KeyError)
    assert not optimizer_hook.is_hooked(model.optimizer)
    if RANK == SIZE - 1:
        model.train_on_batch(*data())
        model.fit(*data(), verbose=0)
    fit(model)
    assert_replicas_are_equal(model)


def check_a_fit_that_is_not_keras_own():
    class Mine(keras.Sequential):
        def fit(self, x, y, callbacks):
            inner = keras.callbacks.CallbackList(callbacks, model=self)
            inner.on_train_begin()

    model = Mine([keras.layers.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    error = fails(lambda: model.fit(*data(), callbacks=both()))
    assert isinstance(error, RuntimeError) and "Mine.fit()" in str(error), error


def check_different_numbers_of_steps():
    if SIZE == 1:
        return
    x, y = data(2 + RANK % 2)
    error = fails(
        lambda: new_model().fit(x, y, batch_size=BATCH, verbose=0, callbacks=both(uneven="error"))
    )
    assert isinstance(error, RuntimeError)
    assert "different numbers of batches: 2 on rank" in str(error) and "; 3 on" in str(error), error


def check_different_models():
    if SIZE == 1:
        return
    width = 3 if RANK == 1 else 4
    model = new_model(layers=[keras.layers.Dense(width), keras.layers.Dense(1)])
    error = fails(lambda: fit(model))
    assert "Rank 1 called" in str(error), error
    assert "(6, 3)" in str(error) and "(6, 4)" in str(error), error


def check_different_gradients():
    if SIZE == 1:
        return
    frozen = keras.layers.Dense(4)
    model = new_model(layers=[frozen, keras.layers.Dense(1)])
    frozen.trainable = RANK != 1
    model.compile("sgd", "mse")
    x, y = data()
    error = fails(lambda: model.fit(x, y, callbacks=[ddl.DDLCallback()], verbose=0))
    assert "reduction of gradients" in str(error), error


def check_a_step_compiled_by_xla():
    if BACKEND == "torch":
        return  # torch_checks.py has its compiler
    keras.utils.set_random_seed(RANK)
    model = new_model(jit_compile=True)
    try:
        fit(model)
    except NotImplementedError as error:  # on all ranks, where XLA is too old
        assert keras.version().startswith("3.5.") and "a later TensorFlow" in str(error), error
    else:
        assert_replicas_are_equal(model)


def check_strategies_of_tensorflow():
    if BACKEND != "tensorflow" or SIZE == 1:
        return
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    nothing = contextlib.nullcontext()
    for around_model, around_fit in ((strategy.scope(), nothing), (nothing, strategy.scope())):
        with around_model:
            model = new_model()
        with around_fit:
            error = fails(lambda m=model: fit(m))
        assert isinstance(error, ValueError), error
        assert "Remove the strategy" in str(error) and "MirroredStrategy" in str(error), error
    fit(new_model())  # a scope that has ended is none


def check_run_eagerly_and_several_steps_per_execution():
    for arguments in ({"run_eagerly": True}, {"steps_per_execution": 3}):
        if not TAKES_SEVERAL_STEPS and "steps_per_execution" in arguments:
            continue
        keras.utils.set_random_seed(RANK)
        before = gradient_reducer.reduced_steps()
        model = new_model(**arguments)
        fit(model)
        assert gradient_reducer.reduced_steps() - before == (3 if SIZE > 1 else 0)
        assert_replicas_are_equal(model)


def check_a_layer_that_only_runs_eagerly():
    if BACKEND != "tensorflow":
        return  # elsewhere Keras itself traces the layer

    class Scores(keras.layers.Layer):
        def call(self, x):
            self.latest = keras.ops.convert_to_numpy(x)
            return x

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), Scores(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    fit(model)
    assert_replicas_are_equal(model)


def check_an_embedding():
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Embedding(20, 4), keras.layers.Flatten(),
                              keras.layers.Dense(1)])  # fmt: skip
    model.compile("sgd", "mse")
    words = np.random.default_rng(RANK).integers(0, 20, (16, 5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(words, words.sum(1).astype("float32"), batch_size=8, verbose=0, callbacks=both())
    told = [str(warning.message) for warning in caught if "is sparse" in str(warning.message)]
    is_made_dense = BACKEND == "tensorflow" and model.jit_compile
    assert len(told) == (1 if RANK == 0 and SIZE > 1 and is_made_dense else 0), told
    assert all("(20, 4)" in text for text in told)
    assert_replicas_are_equal(model)


def check_mixed_precision_skips_on_all_ranks():
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(1, dtype="mixed_float16")]
    )
    inner = keras.optimizers.SGD(0.01)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10)
    model.compile(optimizer, "mse")
    x, y = data()
    if RANK == SIZE - 1:
        x[0] = 6e4  # overflows in the first step, on this rank alone
    before = COMM.bcast(model.get_weights())
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    model.fit(x[:BATCH], y[:BATCH], callbacks=both(), **arguments)
    for weight, first in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, first)
    model.fit(x, y, epochs=2, callbacks=both(), **arguments)
    assert_replicas_are_equal(model)
    taken = COMM.allgather((int(inner.iterations.numpy()), float(optimizer.dynamic_scale.numpy())))
    assert taken == [(2 * 2, 2.0**10 / 2**3)] * SIZE, taken


def check_compile_wraps_a_distributed_optimizer():
    """Keras puts a `LossScaleOptimizer` around it. Ranks with an overflow skip steps together."""
    policy = keras.config.dtype_policy()
    for has_callback in (False, True):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
            model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        finally:
            keras.config.set_dtype_policy(policy)
        outer = model.optimizer
        assert isinstance(outer, keras.optimizers.LossScaleOptimizer)
        x, y = data(5)
        if RANK == SIZE - 1:
            x[BATCH] = 6e4  # overflows on this rank alone, in the second step
        model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False,
                  callbacks=both() if has_callback else None)  # fmt: skip
        assert_replicas_are_equal(model)
        counts = COMM.allgather((int(outer.inner_optimizer.iterations), float(outer.dynamic_scale)))
        assert len(set(counts)) == 1 and 1 < counts[0][0] < 5, counts


def skipping_class():
    """A new class of wrappers that skip updates by what their own rank sees."""

    class Skipping(keras.optimizers.Optimizer):
        def __init__(self, held, inner):
            super().__init__(learning_rate=0.0)
            self.held = held
            self.inner = lambda: inner

        def build(self, variables):
            self.inner().build(variables)
            super().build(variables)

        def apply(self, grads, trainable_variables=None):
            if all(np.isfinite(keras.ops.convert_to_numpy(each)).all() for each in grads):
                self.inner().apply(grads, trainable_variables)

    return Skipping


def apply_skipping_alone(optimizer, by_pairs=False):
    """Four steps, the second of which has an infinity on one rank."""
    variable = keras.Variable(np.zeros(3, "float32"), name="a")
    optimizer.build([variable])
    for step in range(4):
        if hasattr(optimizer, "dynamic_scale"):
            optimizer.dynamic_scale.assign(1.0)
        gradient = np.full(3, RANK + 1, "float32")
        if step == 1 and RANK == 0:
            gradient[:] = np.inf
        gradient = keras.ops.convert_to_tensor(gradient)
        if by_pairs:
            optimizer.apply_gradients(zip([gradient], [variable], strict=True))
        else:
            optimizer.apply([gradient], [variable])
    mean = np.mean([rank + 1 for rank in range(SIZE)])
    np.testing.assert_allclose(variable.numpy(), np.full(3, -3 * mean), rtol=1e-6)


class Slotted:
    __slots__ = ("__inner", "unset")

    def __init__(self, inner):
        self.__inner = inner


def check_a_distributed_optimizer_in_any_wrapper():
    """The wrapper skips updates by what its own rank sees, unless it sees the mean."""
    held = {
        "attribute": lambda inner: inner,
        "dict": lambda inner: {"a": inner},
        "nested": lambda inner: [({"a": [inner]},)],
        "holder": lambda inner: types.SimpleNamespace(a=types.SimpleNamespace(b=inner)),
        "slots": Slotted,
        "method": lambda inner: inner.apply,
        "partial": lambda inner: functools.partial(print, inner.apply),
    }
    for hold in held.values():
        inner = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
        # The class does not exist before the hook.
        apply_skipping_alone(skipping_class()(hold(inner), inner))
    if BACKEND != "jax":  # Keras's own cannot be applied there outside of a compiled step
        inner = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
        apply_skipping_alone(keras.optimizers.LossScaleOptimizer(inner))


def check_a_wrapper_of_apply_gradients():
    class Skipping(keras.optimizers.Optimizer):
        def __init__(self, inner):
            super().__init__(learning_rate=0.0)
            self.inner = inner

        def build(self, variables):
            self.inner.build(variables)
            super().build(variables)

        def apply_gradients(self, grads_and_vars):
            pairs = list(grads_and_vars)
            if all(np.isfinite(keras.ops.convert_to_numpy(each)).all() for each, _ in pairs):
                self.inner.apply_gradients(pairs)

    class Clipping(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars):
            grads, variables = zip(*grads_and_vars, strict=True)
            finite = [keras.ops.where(keras.ops.isfinite(g), g, 0.0) for g in grads]
            super().apply_gradients(zip(finite, variables, strict=True))

    inner = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
    apply_skipping_alone(Skipping(inner), by_pairs=True)
    before = gradient_reducer.reduced_steps()
    apply_skipping_alone(ddl.DistributedOptimizer(Clipping(1.0)), by_pairs=True)
    if SIZE > 1:
        assert gradient_reducer.reduced_steps() - before == 4  # once a step


def check_a_trainer_that_holds_several_optimizers():
    """An optimizer that refers to it does not hold the others."""
    trainer = types.SimpleNamespace()
    trainer.optimizers = [ddl.DistributedOptimizer(keras.optimizers.SGD()) for _ in range(2)]
    for each in trainer.optimizers:
        each.trainer = trainer
        assert inner_optimizers.inner_optimizers(each) == []


def check_a_fit_of_one_rank_alone_is_named():
    if SIZE == 1:
        return
    model = new_model()
    error = fails(lambda: fit(model) if RANK == 0 else ddl.barrier())
    assert "Rank 0 called model.fit() (at its start)" in str(error), error
    assert "called barrier()." in str(error), error


def check_a_model_without_trainable_weights_is_not_said_to_train_alone():
    model = new_model()
    model.trainable = False
    model.compile("sgd", "mse")
    error = io.StringIO()
    with contextlib.redirect_stderr(error), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's own, of the same
        fit(model)
    assert "trained alone" not in error.getvalue(), error.getvalue()


def check_a_step_that_trains_nothing_is_not_said_to_train_alone():
    class Still(keras.Model):
        moves = False

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, *arguments):  # on JAX the state is one of them
            if self.moves and BACKEND != "jax":
                self.dense.kernel.assign_add(keras.ops.ones_like(self.dense.kernel))
            return {"loss": 0.0} if BACKEND != "jax" else ({"loss": 0.0}, arguments[0])

    for moves in (False, BACKEND != "jax"):
        model = Still()
        model.moves = moves
        model.compile("sgd", "mse")
        model(np.zeros((1, 6), "float32"))
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            fit(model)
        told = RANK == 0 and SIZE > 1 and moves
        assert ("trained alone" in error.getvalue()) == told, error.getvalue()


def check_average_is_that_of_numpy():
    variables = [keras.Variable(np.zeros(3, "float32"), name="a"),
                 keras.Variable(np.zeros((2, 2), "float32"), name="b")]  # fmt: skip
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
    gradient = np.arange(3, dtype="float32") * (RANK + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras tells of the gradient that is absent
        optimizer.apply([keras.ops.convert_to_tensor(gradient), None], variables)
    want = -np.arange(3) * np.mean([rank + 1 for rank in range(SIZE)])
    np.testing.assert_allclose(variables[0].numpy(), want, rtol=1e-6)
    np.testing.assert_array_equal(variables[1].numpy(), 0)


def check_distributed_optimizer_takes_optimizers_only():
    for wrong in ("sgd", None, keras.optimizers.SGD):
        error = fails(lambda w=wrong: ddl.DistributedOptimizer(w))
        assert isinstance(error, TypeError) and "optimizer" in str(error)
    optimizer = keras.optimizers.SGD()
    assert ddl.DistributedOptimizer(optimizer) is optimizer
    assert ddl.DistributedOptimizer(optimizer) is optimizer
    model = new_model(optimizer=optimizer)
    before = gradient_reducer.reduced_steps()
    fit(model)
    if SIZE > 1:
        assert gradient_reducer.reduced_steps() - before == 3  # once a step, hooked twice or not
    assert optimizer_hook.is_hooked(optimizer)


def check_broadcast_variables_takes_variables_only():
    assert isinstance(fails(lambda: ddl.broadcast_variables([np.ones(2)])), TypeError)
    assert isinstance(fails(lambda: ddl.broadcast_variables([], root_rank=SIZE)), ValueError)


def recorded_order(seed, *callbacks, **arguments):
    """The samples of each epoch in the order of a fit, and the model."""
    keras.utils.set_random_seed(seed + RANK)
    epochs = []

    class Recorder(keras.Model):
        def train_step(self, *arguments):
            x = keras.ops.convert_to_numpy(arguments[-1][0])
            epochs[-1].extend(x[:, 0].astype(int).tolist())
            return super().train_step(*arguments)

    inputs = keras.Input((1,))
    model = Recorder(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(1e-6, momentum=0.9), "mse", run_eagerly=True)
    model.set_weights([np.ones((1, 1)), np.zeros(1)])
    x = np.arange(22, dtype="float32")[:, None]
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: epochs.append([]))
    arguments = {"epochs": 4, "batch_size": 4, "verbose": 0, **arguments}
    try:
        model.fit(x, x, callbacks=both(begin, *callbacks), **arguments)
    except KeyError:
        assert callbacks
    return epochs, model


def check_shuffled_arrays_have_an_order_by_seed_epoch_and_rank():
    epochs, _ = recorded_order(3)
    for epoch in epochs:
        assert sorted(epoch) == list(range(22))
    everyones = COMM.allgather(epochs)
    orders = [tuple(epoch) for each in everyones for epoch in each]
    assert len(set(orders)) == 4 * SIZE, orders
    assert recorded_order(3)[0] == epochs
    assert recorded_order(4)[0] != epochs
    part, _ = recorded_order(3, validation_split=0.25)
    assert sorted(part[0]) == sorted(part[1]) and len(part[0]) < 18
    assert part[0] != part[1] != sorted(part[0])
    # A pass may take several epochs.
    steps, _ = recorded_order(3, epochs=3, steps_per_epoch=2)
    assert [sample for epoch in steps for sample in epoch] == epochs[0]
    plain, _ = recorded_order(3, shuffle=False)
    assert plain == [list(range(22))] * 4
    blocks, _ = recorded_order(3, shuffle="batch")
    assert [sorted(blocks[0][i : i + 4])[0] % 4 for i in range(0, 20, 4)] == [0] * 5


def check_a_resumed_fit_shuffles_arrays_as_the_interrupted_one():
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if (len(self.model.history.epoch), batch) == (2, 3):
                raise KeyError("interrupted")

    whole, want = recorded_order(3)
    folder = COMM.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    try:
        for save_freq, skipped in (("epoch", 0), (5, 12)):
            backup = functools.partial(
                ddl.BackupAndRestore, os.path.join(folder, str(save_freq)), save_freq
            )
            before, _ = recorded_order(3, backup(), Interrupt())
            assert before[:2] == whole[:2] and before[2] == whole[2][:12], before
            # The seed of the script does not matter, nor what it has drawn.
            after, model = recorded_order(50, backup())
            assert after == [whole[2][skipped:], whole[3]], (save_freq, after, whole)
            for mine, other in zip(model.get_weights(), want.get_weights(), strict=True):
                assert mine.tobytes() == other.tobytes(), save_freq
    finally:
        COMM.barrier()
        if RANK == 0:
            shutil.rmtree(folder)


def check_a_distribution_of_keras_is_refused():
    model = new_model()
    x, y = data()
    devices = keras.distribution.list_devices() if BACKEND == "jax" else ["cpu:0"]
    try:
        distribution = keras.distribution.DataParallel(devices=devices)
    except AttributeError:
        assert BACKEND != "jax"  # Keras 3.5 has none on TensorFlow
        return
    keras.distribution.set_distribution(distribution)
    try:
        errors = {
            "before fit": fails(lambda: fit(model)),
            "before evaluate": fails(
                lambda: model.evaluate(x, y, verbose=0, callbacks=[ddl.DDLCallback()])
            ),
        }
    finally:
        keras.distribution.set_distribution(None)
    for text, error in errors.items():
        assert isinstance(error, ValueError), error
        assert "set_distribution(None)" in str(error) and text in str(error), error
    fit(model)


def check_compute_threads_are_shared():
    if SIZE > 1:
        want = max(1, len(os.sched_getaffinity(0)) // SIZE)
        bound = os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
        if not bound:
            assert compute_threads() == want


def compute_threads():
    """What the framework has been told to take."""
    if BACKEND == "torch":
        import torch

        return torch.get_num_threads()
    if BACKEND == "jax":
        keras.ops.convert_to_numpy(keras.ops.ones(2) + 1)
        names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
        return sum(name.startswith("tf_XLAEigen") for name in names)
    import tensorflow as tf

    return tf.config.threading.get_intra_op_parallelism_threads()


if __name__ == "__main__":
    run_checks(globals())
