"""Which samples the ranks take in `model.fit()`, on every rank of one job."""

import contextlib
import io
import random
import shutil
import tempfile
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from line_errors import renew_communicator
from mpi import run_checks
from mpi4py import MPI

import easyddl as ddl

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


class Record:
    """The batches of each epoch that a model was trained on, and the samples it was tested on."""

    def __init__(self):
        self.trained, self.tested = [], []


class Recorder(keras.Model):
    """Keeps a record of the samples that it takes."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.record = Record()  # a list would be replaced by Keras's own kind

    def call(self, x):
        return self.dense(x)

    def train_step(self, *arguments):  # on JAX the state is one of them
        self.record.trained[-1].append(self._samples(arguments[-1]))
        return super().train_step(*arguments)

    def test_step(self, *arguments):
        self.record.tested.extend(self._samples(arguments[-1]))
        return super().test_step(*arguments)

    def _samples(self, data):
        x, *y_and_weight = (np.asarray(each).reshape(-1) for each in data)
        for each in y_and_weight:
            np.testing.assert_array_equal(each, x)
        return x.astype(int).tolist()


def new_recorder():
    model = Recorder()
    model.compile(keras.optimizers.SGD(1e-4), "mse", run_eagerly=True)
    model(np.zeros((1, 1), "float32"))  # builds it
    return model


def recorded(*data, **arguments):
    """The record of a fit on all ranks."""
    model = new_recorder()
    # Keras's own default, which it warns of where it does not hold.
    arguments.setdefault("shuffle", isinstance(data[0], keras.utils.PyDataset))
    begin = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: model.record.trained.append([])
    )
    callbacks = [ddl.DDLCallback(), begin, ddl.DDLGlobalVariablesCallback()]
    model.fit(*data, verbose=0, callbacks=callbacks, **arguments)
    return model.record


def recorded_alone(x, **arguments):
    """The record of a fit by Keras alone."""
    model = new_recorder()
    model.record.trained.append([])
    model.fit(x, x, verbose=0, **arguments)
    return model.record


def column(samples):
    """Samples that hold their own number."""
    return np.arange(samples, dtype="float32")[:, None]


def flat(lists):
    return [sample for each in lists for sample in each]


def fails(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def assert_is_everything(epoch, samples):
    """The ranks' samples of an epoch are all samples, each on one rank."""
    together = flat(COMM.allgather(flat(epoch)))
    assert sorted(together) == list(range(samples)), together


# A fresh order in every epoch.


def arrays():
    return ddl.split_data(column(24 * SIZE), column(24 * SIZE), shuffle="epoch", batch_size=4)


def tf_dataset():
    # What a rank does to the global seed must not matter.
    tf.random.set_seed(1000 + RANK)
    dataset = ddl.split_data(tf.data.Dataset.range(24 * SIZE), shuffle="epoch")
    tf.random.set_seed(None)
    return dataset.map(to_sample).batch(4).prefetch(2)


def to_sample(number):
    sample = tf.reshape(tf.cast(number, "float32"), (1,))
    return sample, sample


def py_dataset():
    return ddl.split_data(Batches(), shuffle="epoch")


class Batches(keras.utils.PyDataset):
    def __init__(self, use_multiprocessing=False):
        super().__init__(workers=2, use_multiprocessing=use_multiprocessing)

    @property
    def num_batches(self):
        return 6 * SIZE

    def __getitem__(self, index):
        rows = column(24 * SIZE)[4 * index : 4 * index + 4]
        return rows, rows


def check_each_epoch_is_a_fresh_order_over_all_ranks():
    for make in (arrays, tf_dataset, py_dataset):
        epochs = recorded(make(), epochs=3).trained
        for epoch in epochs:
            assert len(epoch) == 6 and {len(batch) for batch in epoch} == {4}
            assert_is_everything(epoch, 24 * SIZE)
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0], make.__name__
        if SIZE > 1:  # samples change ranks, too
            assert {*flat(epochs[0])} != {*flat(epochs[1])}


def check_a_training_that_goes_on_finds_the_order_again():
    for make in (arrays, tf_dataset, py_dataset):
        whole = recorded(make(), epochs=4).trained
        data = make()
        again = recorded(data, epochs=4, initial_epoch=2).trained
        assert again == whole[2:], make.__name__
        assert recorded(data, epochs=2).trained == whole[:2], make.__name__


def check_training_equals_one_process():
    def new_model():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        return model

    x = np.random.default_rng(3).standard_normal((16 * SIZE, 3)).astype("float32")
    y = x.sum(1)
    keras.utils.set_random_seed(RANK)
    model, alone = new_model(), new_model()
    alone.set_weights(COMM.bcast(model.get_weights()))
    data = ddl.split_data(x, y, shuffle="epoch", seed=5, batch_size=4)
    both = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    model.fit(data, epochs=3, verbose=0, callbacks=both)
    for epoch in range(3):
        order = np.random.default_rng([5, epoch]).permutation(16 * SIZE)
        alone.fit(x[order], y[order], batch_size=4 * SIZE, shuffle=False, verbose=0)
    for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-5, atol=1e-6)


def check_a_dataset_that_never_ends_has_no_epochs():
    text = fails(ValueError, lambda: recorded(tf_dataset().repeat(), steps_per_epoch=2))
    assert "leave out `repeat()`" in text


def check_a_dataset_that_never_ends_has_steps_for_each_epoch():
    samples = ddl.split_data(tf.data.Dataset.range(24 * SIZE).map(to_sample).repeat())
    for epoch in recorded(samples.batch(4), epochs=2, steps_per_epoch=6).trained:
        assert_is_everything(epoch, 24 * SIZE)


# Datasets that are split by elements.


def check_batches_of_a_step_follow_one_another():
    dataset = tf.data.Dataset.range(24 * SIZE).map(to_sample).batch(4)
    (epoch,) = recorded(ddl.split_data(dataset)).trained
    for step, batches in enumerate(zip(*COMM.allgather(epoch), strict=True)):
        begin = 4 * SIZE * step
        assert flat(batches) == list(range(begin, begin + 4 * SIZE))


def check_worker_processes_read_for_a_rank():
    data = ddl.split_data(Batches(use_multiprocessing=True))
    for epoch in recorded(data, epochs=2).trained:
        assert_is_everything(epoch, 24 * SIZE)


def check_shuffles_before_are_alike_on_all_ranks():
    def shuffled(seed):
        return tf.data.Dataset.range(24 * SIZE).shuffle(24 * SIZE, seed=seed).map(to_sample)

    tf.random.set_seed(None)  # another check may have set one
    epochs = recorded(ddl.split_data(shuffled(7)).batch(4), epochs=2).trained
    for epoch in epochs:
        assert_is_everything(epoch, 24 * SIZE)
    assert epochs[0] != epochs[1]
    if SIZE > 1:
        text = fails(ValueError, lambda: ddl.split_data(shuffled(RANK)))
        assert "Pass the same `seed` on all ranks to" in text
        text = fails(ValueError, lambda: ddl.split_data(shuffled(None)))
        assert "pass the same `seed` to `shuffle`" in text
    ddl.barrier()  # nothing is left behind


def check_an_interrupt_before_the_seeds_are_compared():
    """Rank 1 goes on. Its next dataset must not be compared with this one of the other ranks."""
    if SIZE == 1:
        return

    def split():
        ddl.split_data(tf.data.Dataset.range(8 * SIZE).shuffle(8, seed=7))

    with mock.patch("easyddl.data.tf_dataset._draws", side_effect=KeyboardInterrupt):
        fails(KeyboardInterrupt, split) if RANK == 1 else None
    for _ in range(1 if RANK == 1 else 2):
        assert "given up by KeyboardInterrupt" in fails(RuntimeError, split)
    renew_communicator()


def check_generators():
    def forever():
        for number in range(10**6):
            sample = column(24 * SIZE)[number % (24 * SIZE)][None]
            yield sample, sample

    (epoch,) = recorded(ddl.split_data(forever()), steps_per_epoch=24).trained
    assert_is_everything(epoch, 24 * SIZE)


# Random numbers outside of the model.


class Drawing(keras.utils.PyDataset):
    """Draws by NumPy and Python: for each batch, and for the order of each epoch."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(24 * SIZE)
        self.draws = []
        self.has_begun = False

    def __len__(self):
        return 6 * SIZE

    def __getitem__(self, index):
        self.draws.append((np.random.random(), random.random()))
        rows = column(24 * SIZE)[self.order[4 * index : 4 * index + 4]]
        return rows, rows

    def on_epoch_begin(self):
        if not self.has_begun:
            self.has_begun = True
            self.draws.clear()  # Keras reads some batches before it trains

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def check_augmentations_differ_and_orders_do_not():
    for seed in (3, None):
        if seed is None:  # the processes draw by themselves
            np.random.seed(RANK)
            random.seed(RANK)
        else:
            keras.utils.set_random_seed(seed)
        data = Drawing()
        epochs = recorded(ddl.split_data(data), epochs=3, shuffle=False).trained
        for epoch in epochs:
            assert_is_everything(epoch, 24 * SIZE)
        everyones = flat(COMM.allgather(data.draws))
        assert len(set(everyones)) == len(everyones)
        if seed is None:
            continue
        # After the fit, numbers are again the same on all ranks, and new.
        after = (np.random.random(), random.random())
        assert len(set(COMM.allgather(after))) == 1 and after not in everyones
        # The root draws what one process draws. Keras's layers draw from `random`, too.
        keras.utils.set_random_seed(seed)
        alone = {np.random.random() for _ in range(100)}
        drawn = COMM.bcast(data.draws)
        assert len(drawn) == 18 and alone.issuperset(number for number, _ in drawn)


def check_orders_of_a_dataset_of_ones_own_are_those_of_one_process():
    class Shuffling(Drawing):
        def __getitem__(self, index):
            rows = column(24 * SIZE)[self.order[4 * index : 4 * index + 4]]
            return rows, rows

    keras.utils.set_random_seed(5)
    epochs = recorded(ddl.split_data(Shuffling()), epochs=3, shuffle=False).trained
    steps = np.concatenate([np.stack(COMM.allgather(epoch), 1).reshape(-1) for epoch in epochs])
    numbers = set(COMM.allgather(np.random.random()))
    keras.utils.set_random_seed(5)
    alone = new_recorder()
    alone.record.trained.append([])
    alone.fit(Shuffling(), epochs=3, shuffle=False, verbose=0)
    assert steps.tolist() == flat(alone.record.trained[0])
    assert numbers == {np.random.random()}


def check_generators_draw_the_same_on_all_ranks():
    def forever():
        while True:
            for rows in np.split(np.random.permutation(24 * SIZE), 6 * SIZE):
                yield column(24 * SIZE)[rows], column(24 * SIZE)[rows]

    keras.utils.set_random_seed(7)
    (epoch,) = recorded(ddl.split_data(forever()), steps_per_epoch=6).trained
    assert_is_everything(epoch, 24 * SIZE)


def check_numbers_are_the_same_again_after_an_error():
    class Failing(Drawing):
        def __getitem__(self, index):
            raise ZeroDivisionError(np.random.random())

    keras.utils.set_random_seed(9)
    try:
        recorded(ddl.split_data(Failing()))
    except Exception:
        assert len(set(COMM.allgather((np.random.random(), random.random())))) == 1
    else:
        raise AssertionError("no error")


# Files that datasets write.


def check_caches_in_files():
    """After the split each rank needs a file of its own, and before it all may read one."""
    numbers = tf.data.Dataset.range(24 * SIZE)
    folder = COMM.bcast(tempfile.mkdtemp() if RANK == 0 else None)

    def train(dataset):
        return recorded(dataset.map(to_sample).batch(4), epochs=2).trained

    def after(path):
        return ddl.split_data(numbers).cache(path)

    def before(path, **options):
        return ddl.split_data(numbers.cache(path), **options)

    if SIZE > 1:
        text = fails(ValueError, lambda: train(after(f"{folder}/after")))
        assert "Put the rank into its path" in text and f"cache('{folder}/after')" in text, text
        for options in ({}, {"shuffle": "epoch"}):
            dataset = before(f"{folder}/before", **options)
            text = fails(ValueError, lambda dataset=dataset: train(dataset))
            assert "let one process read the whole dataset once" in text, text
        if RANK == 0:
            list(numbers.cache(f"{folder}/before"))
            list(numbers.take(24).cache(f"{folder}/after"))
        ddl.barrier()
        # The file is there, and has the elements of one rank.
        assert "Put the rank" in fails(ValueError, lambda: train(after(f"{folder}/after")))
    else:
        train(before(f"{folder}/before"))
    for dataset in (
        after(f"{folder}/own-{RANK}-of-{SIZE}"),
        before(f"{folder}/before", shuffle="epoch"),
        ddl.split_data(numbers.snapshot(f"{folder}/whole")),
    ):
        for epoch in train(dataset):
            assert_is_everything(epoch, 24 * SIZE)
    ddl.barrier()
    if RANK == 0:
        shutil.rmtree(folder)


def check_a_saved_dataset_that_nothing_splits():
    with tempfile.TemporaryDirectory() as mine:
        folder = COMM.bcast(mine)
        if RANK == 0:
            tf.data.Dataset.range(24 * SIZE).save(folder)
        ddl.barrier()
        loaded = tf.data.Dataset.load(folder)
        for dataset, warns in ((loaded, SIZE > 1), (ddl.split_data(loaded), False)):
            printed = io.StringIO()
            with contextlib.redirect_stderr(printed):
                recorded(dataset.map(to_sample).batch(4))
            text = COMM.bcast(printed.getvalue())
            assert ("Call ddl.split_data() after load()" in text) == warns, text


# Values that the data are mapped to.


def check_vocabularies_of_a_map():
    words = np.array([f"word-{i % (12 * SIZE)}" for i in range(24 * SIZE)])
    mine = ddl.split_data(words)

    def train(vocabulary, layer):
        layer.adapt(vocabulary)
        dataset = ddl.split_data(tf.data.Dataset.from_tensor_slices(words)).map(layer)
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            recorded(dataset.map(lambda x: to_sample(tf.reshape(x, ()))).batch(4))
        return COMM.bcast(printed.getvalue())

    for layer in (keras.layers.StringLookup, keras.layers.TextVectorization):
        options = {"standardize": None} if layer is keras.layers.TextVectorization else {}
        text = train(mine, layer(**options))
        assert ("Call adapt() on all data, before split_data()" in text) == (SIZE > 1), text
        assert not train(words, layer(**options))


# What is held out.


def check_validation_split_is_that_of_one_process():
    for samples, fraction, batch in ((23, 0.3, 8), (24, 0.25, 9), (20, 0.5, 5), (23, 1 / 3, 8)):
        alone = recorded_alone(column(samples), validation_split=fraction)
        x, y = ddl.split_data(column(samples), column(samples), remainder="keep")
        shared = recorded(x, y, batch_size=batch, validation_split=fraction)
        assert sorted(flat(COMM.allgather(flat(flat(shared.trained))))) == sorted(
            flat(flat(alone.trained))
        )
        assert sorted(flat(COMM.allgather(shared.tested))) == sorted(alone.tested)


def check_validation_split_keeps_weights_together():
    x, weight = ddl.split_data(column(6 * SIZE), np.arange(6.0 * SIZE))
    found = recorded(x, x, sample_weight=weight, validation_split=0.5, batch_size=9)
    held_out = flat(COMM.allgather(found.tested))
    assert sorted(held_out) == list(range(3 * SIZE, 6 * SIZE))


def check_validation_split_of_other_parts_is_left_to_keras():
    # Rank 0 has twice as many, which split_data gives to none.
    x = column(20 if RANK == 0 else 10) + 100 * RANK
    if SIZE > 1:
        found = recorded(x, x, validation_split=0.2, batch_size=16)
        assert found.tested == x[-len(x) // 5 :, 0].astype(int).tolist()


def check_validation_split_without_ours_is_keras_own():
    alone = recorded_alone(column(10 + RANK), validation_split=0.3)
    assert alone.tested == list(range(int((10 + RANK) * 0.7), 10 + RANK))


def check_validation_split_that_differs():
    if SIZE > 1:
        x = column(10)
        text = fails(ValueError, lambda: recorded(x, x, validation_split=0.1 * (RANK + 1)))
        assert "All ranks must pass the same `validation_split`" in text
        everyones = COMM.allgather(text)
        assert everyones == [everyones[0]] * SIZE


def check_validation_split_that_leaves_a_rank_none():
    if SIZE > 1:
        x = column(10)
        text = fails(ValueError, lambda: recorded(x, x, validation_split=0.01))
        assert "one to hold out" in text and f"with {10 * SIZE} samples on {SIZE} ranks" in text


if __name__ == "__main__":
    run_checks(globals())
