"""One rank leaves a fit or an evaluation by an error, and the script goes on."""

import contextlib
import functools
import pathlib
import signal
import threading
from functools import partial
from unittest import mock

import keras
import numpy as np
from fits import BATCH, RANK, SIZE, assert_replicas_are_equal, both, data, data_of, fit, new_model
from line_errors import renew_communicator
from mpi import run_checks

import easyddl as ddl
from easyddl.training.fit import callback_order
from easyddl.training.fit.fit_context import FitContext
from easyddl.training.step import loss_weight

STEPS = 3
SECONDS = 200  # less than the deadline of a rank that waits, which is ten minutes


class Broken(OSError):
    """What the data of a rank raise."""


def in_time(check):
    """Ends a check that waits for long, on all ranks alike."""

    def late(*_):
        raise TimeoutError(f"rank {RANK} has waited for {SECONDS} s")

    @functools.wraps(check)
    def limited():
        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        try:
            check()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    return limited


class Data(keras.utils.PyDataset):
    """This rank's batches, of which one may raise an error."""

    def __init__(self, broken=None, steps=STEPS):
        super().__init__()
        self.x, self.y = data(steps)
        self.broken, self.steps = broken, steps

    def __len__(self):
        if self.broken == "length":
            raise Broken(f"no such folder on rank {RANK}")
        return self.steps

    def __getitem__(self, index):
        if index == self.broken:
            raise Broken(f"no such image on rank {RANK}")
        batch = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[batch], self.y[batch]


class Failing(keras.callbacks.Callback):
    """Raises an error in one of Keras's hooks, on some ranks."""

    def __init__(self, hook, ranks=(1,)):
        super().__init__()
        if RANK in ranks:
            setattr(self, hook, self._fail)

    def _fail(self, *_, **__):
        raise Broken(f"no space left on rank {RANK}")


def error_of(act):
    """The error that `act` raises; `None` if it raises none."""
    try:
        act()
    except Exception as error:
        return error
    return None


def seeded_model(**arguments):
    keras.utils.set_random_seed(3)
    return new_model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), **arguments)


def fit_on(batches, model=None, *callbacks, **arguments):
    model = seeded_model() if model is None else model
    arguments = {"verbose": 0, "shuffle": False, **arguments}
    return model.fit(batches, callbacks=both(*callbacks), **arguments)


def assert_named(error, *texts, rank=1):
    """The rank's own error, or one on another rank that names it.

    What TensorFlow raises in a graph is an error of its own.
    """
    if rank == RANK:
        assert isinstance(error, Broken) or "Broken: " in str(error), repr(error)
        return
    assert isinstance(error, Exception), repr(error)
    for text in (f"rank {rank}", "Broken", *texts):
        assert text in str(error), (text, str(error))


def assert_goes_on():
    """All ranks gather scores, and train again as one process does."""
    scores = ddl.allgather_object((RANK, 0.5))
    assert scores == [(rank, 0.5) for rank in range(SIZE)], scores
    model, one = seeded_model(), seeded_model()
    fit(model, steps=STEPS, shuffle=False, epochs=2)
    shards = [data_of(STEPS, rank) for rank in range(SIZE)]
    batches = [slice(i * BATCH, (i + 1) * BATCH) for i in range(STEPS)]
    x, y = [np.concatenate([s[k][b] for b in batches for s in shards]) for k in (0, 1)]
    one.fit(x, y, batch_size=BATCH * SIZE, shuffle=False, epochs=2, verbose=0)
    for mine, expected in zip(model.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-6)


def assert_all_leave(fails, *texts):
    """Rank 1 leaves a fit by an error, all others get one at once, and all go on."""
    error = error_of(fails)
    score = 1e9 if error else 0.5
    assert ddl.allgather_object(score) == [1e9] * SIZE
    assert_named(error, *texts)
    assert_goes_on()


@in_time
def check_the_begin_of_a_fit():
    assert_all_leave(lambda: fit_on(Data("length" if RANK == 1 else None)), "no such folder")


@in_time
def check_the_first_batch():
    assert_all_leave(lambda: fit_on(Data(0 if RANK == 1 else None)), "no such image on rank 1")


@in_time
def check_a_later_batch():
    assert_all_leave(lambda: fit_on(Data(1 if RANK == 1 else None)), "no such image on rank 1")


@in_time
def check_the_last_batch_while_others_end_the_epoch():
    """The others have no batch for the third step, and join."""
    broken = Data(2 if RANK == 1 else None, STEPS if RANK == 1 else 2)
    assert_all_leave(lambda: fit_on(broken), "no such image on rank 1")


@in_time
def check_the_end_of_an_epoch():
    assert_all_leave(lambda: fit_on(Data(), None, Failing("on_epoch_end")), "no space left")


@in_time
def check_the_validation():
    failing = Failing("on_test_begin")
    assert_all_leave(lambda: fit_on(Data(), None, failing, validation_data=data()), "no space")


@in_time
def check_a_validation_of_a_rank_that_cannot_start_a_thread():
    refusal = mock.patch.object(threading.Thread, "start", side_effect=MemoryError)

    class Exhausted(Failing):
        def _fail(self, *_, **__):
            refusal.start()
            super()._fail()

    def fails():
        try:
            fit_on(Data(), None, Exhausted("on_test_batch_end"), validation_data=data())
        finally:
            mock.patch.stopall()

    assert_all_leave(fails, "no space left")


@in_time
def check_a_collective_of_a_callback():
    """The others wait for rank 1 in a collective that the script has called."""

    class Gather(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            ddl.allgather_object(epoch)

    callbacks = Failing("on_epoch_begin"), Gather()
    assert_all_leave(lambda: fit_on(Data(), None, *callbacks), "no space left")


@in_time
def check_the_end_of_a_fit():
    assert_all_leave(lambda: fit_on(Data(), None, Failing("on_train_end")), "no space left")


def assert_leaves_by_an_interrupt(owner, name, before=lambda *_: None):
    """A signal handler raises an error in place of a function of easyddl, or after `before`."""

    def interrupted(*arguments):
        patch.stop()
        before(*arguments)
        raise Broken

    patch = mock.patch.object(owner, name, interrupted)
    if RANK == 1:
        patch.start()
    assert isinstance(error_of(lambda: fit_on(Data())), Broken) == (RANK == 1)
    assert_goes_on()


@in_time
def check_an_interrupt_before_a_context_is_left():
    assert_leaves_by_an_interrupt(FitContext, "__exit__")


@in_time
def check_an_interrupt_as_a_context_is_entered():
    """No `with` knows of the context yet."""
    contexts = []

    def enter(*arguments):
        contexts.append(loss_weight._output_losses_weighted(*arguments))
        contexts[0].__enter__()

    assert_leaves_by_an_interrupt(loss_weight, "_output_losses_weighted", enter)


@in_time
def check_an_interrupt_before_a_call_has_started():
    """Rank 1 goes on. Its next call must not be taken for this one of the other ranks."""
    model = seeded_model()

    def evaluate():
        model.evaluate(*data(), callbacks=[ddl.DDLCallback()], verbose=0)

    for act in (lambda: fit_on(Data(), model), evaluate):
        caught = mock.patch.object(callback_order, "put_in_order", side_effect=KeyboardInterrupt)
        with caught if RANK == 1 else contextlib.nullcontext():
            try:
                act()
            except BaseException as error:
                assert isinstance(error, KeyboardInterrupt) == (RANK == 1), repr(error)
                assert RANK == 1 or "given up by KeyboardInterrupt" in str(error), error
        assert "given up by KeyboardInterrupt" in str(error_of(act))
        renew_communicator()
    assert_goes_on()


@in_time
def check_an_exit_that_the_script_catches():
    class Exit(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if RANK == 1:
                raise SystemExit(3)

    try:
        fit_on(Data(), None, Exit())
    except BaseException as error:
        caught = error
    assert ddl.allgather_object(RANK) == list(range(SIZE))
    if RANK == 1:
        assert isinstance(caught, SystemExit), repr(caught)
    else:
        assert "rank 1" in str(caught) and "SystemExit: 3" in str(caught), repr(caught)
    assert_goes_on()


@in_time
def check_all_ranks_raise_and_try_again():
    model = seeded_model()
    for _ in range(3):
        error = error_of(lambda: fit_on(Data(1), model))
        assert isinstance(error, Broken), repr(error)
        assert str(error) == f"no such image on rank {RANK}"
    fit_on(Data(), model)
    assert_replicas_are_equal(model)
    assert_goes_on()


@in_time
def check_the_next_fit_of_the_same_model():
    """On JAX the others have lost their variables, also if they have tried to predict since.

    Rank 1 may have lost them, too. Then all ranks get the same error.
    """
    model = seeded_model()
    for batch, predicts in ((0, False), (1, False), (2, False), (2, True)):
        fit_on(Data(), model)
        error = error_of(partial(fit_on, Data(batch if RANK == 1 else None), model))
        assert_named(error, "no such image on rank 1")
        if predicts:
            error_of(partial(model.predict, data()[0], verbose=0))
        error = error_of(partial(fit_on, Data(), model))
        if error is not None:
            assert keras.backend.backend() == "jax", repr(error)
            assert "All ranks have lost the model's variables" in str(error), repr(error)
            model = seeded_model()
        assert_replicas_are_equal(model)
    assert_goes_on()


@in_time
def check_the_memory_of_fits_that_failed():
    def mapped_after_a_failed_fit():
        error = error_of(lambda: fit_on(Data(0 if RANK == 1 else None)))
        assert_named(error, "no such image on rank 1")
        return pathlib.Path("/proc/self/maps").read_text().count("memfd:easyddl")

    mapped = [mapped_after_a_failed_fit() for _ in range(4)]
    assert mapped[1:] == mapped[:1] * 3, mapped
    assert_goes_on()


@in_time
def check_an_optimizer_that_is_wrapped():
    """Its reductions outlast a fit, and the failed one must not end those of the next."""
    wrapped = ddl.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = new_model(optimizer=wrapped)
    fit_on(Data(), model)
    error = error_of(lambda: fit_on(Data(1 if RANK == 1 else None), model))
    assert_named(error, "no such image on rank 1")
    fit_on(Data(), model)
    assert_replicas_are_equal(model)
    assert_goes_on()


@in_time
def check_a_fit_within_a_callback():
    """A collective of the callback is none of the fit that the others are in."""
    scores = []

    class Search(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            error = error_of(lambda: fit_on(Data(0 if RANK == 1 else None)))
            assert_named(error, "no such image on rank 1")
            scores.append(ddl.allgather_object((RANK, epoch)))

    model = seeded_model()
    fit_on(Data(), model, Search(), epochs=2)
    assert scores == [[(rank, epoch) for rank in range(SIZE)] for epoch in range(2)], scores
    assert_replicas_are_equal(model)
    assert_goes_on()


@in_time
def check_an_evaluation():
    model = seeded_model()
    fit_on(Data(), model)
    whole = model.evaluate(*data(), callbacks=[ddl.DDLCallback()], verbose=0)

    def fails():
        broken = Data(1 if RANK == 1 else None)
        model.evaluate(broken, callbacks=[ddl.DDLCallback()], verbose=0)

    assert_all_leave(fails, "no such image on rank 1")
    assert model.evaluate(*data(), callbacks=[ddl.DDLCallback()], verbose=0) == whole


if __name__ == "__main__":
    run_checks(globals())
