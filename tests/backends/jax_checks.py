"""What is JAX's own: steps that Keras begins while the one before is under way."""

import gc
import os
import sys
import threading
import time
from unittest import mock

import jax
import keras
import numpy as np
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails
from mpi import run_checks
from steps import gradients_of

import easyddl as ddl
from easyddl.reducer import gradient_reducer, in_step_sum
from easyddl.reducer.registration import Registration
from easyddl.training.fit import fit_context

BATCH = 4


def data(steps):
    random = np.random.default_rng(RANK)
    x = random.standard_normal((BATCH * steps, 5)).astype("float32")
    return x, x.sum(1)


def new_model(optimizer=None, **arguments):
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.01), "mse", **arguments)
    return model


class Late(keras.callbacks.Callback):
    """Called in threads of Keras's, later on some ranks than on others."""

    async_safe = True

    def __init__(self, delay=0.0):
        super().__init__()
        self.threads, self.delay = set(), threading.Event()
        self.seconds = delay

    def on_train_batch_end(self, batch, logs=None):
        self.threads.add(threading.get_ident())
        self.delay.wait(self.seconds)


class Stop(keras.callbacks.Callback):
    """Asks to stop as a step begins, which Keras tells callbacks of at once."""

    def __init__(self, rank, step):
        super().__init__()
        self.rank, self.step, self.begun = rank, step, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1
        if self.rank == RANK and batch == self.step:
            self._model.stop_training = True


def fit(model, *callbacks, steps=8, uneven="join", **arguments):
    return model.fit(
        *data(steps), batch_size=BATCH, shuffle=False, verbose=0,
        callbacks=both(*callbacks, uneven=uneven), **arguments,
    )  # fmt: skip


def check_no_other_framework_is_imported():
    assert not {"tensorflow", "torch"} & set(sys.modules)


def check_callbacks_are_asynchronous():
    late, progress = Late(), ddl.ProgressCallback()
    fit(new_model(), late, progress)
    assert threading.get_ident() not in late.threads
    # What has to see the state after each step is told of it at once.
    late = Late()
    model = new_model()
    model.fit(
        *data(4), batch_size=BATCH, verbose=0,
        callbacks=[ddl.DDLCallback(check_replicas=2), late, ddl.DDLGlobalVariablesCallback()],
    )  # fmt: skip
    assert late.threads == {threading.get_ident()}


def check_a_step_gives_its_state_to_the_next():
    donated = []

    class Keep(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_begin(self, batch, logs=None):
            if batch > 0:
                donated.append(self._model._jax_state["trainable_variables"][0])

    fit(new_model(), Keep(), steps=4)
    assert len(donated) == 3
    assert all(array.is_deleted() for array in donated)


def check_all_stop_after_the_same_step():
    for rank in {0, SIZE - 1}:
        stop = Stop(rank, 2)
        late = Late(0.02 * RANK)
        model = new_model()
        history = fit(model, stop, late, steps=20, epochs=3)
        assert len(history.epoch) == 1
        # The next step tells all, and while one more is under way they hear of it.
        assert COMM.allgather(stop.begun) == [5 if SIZE > 1 else 3] * SIZE, stop.begun
        assert int(model.optimizer.iterations.numpy()) == stop.begun
        assert_replicas_are_equal(model)


def check_truncate_ends_after_the_same_step():
    late, stop = Late(0.02 * RANK), Stop(-1, 0)
    model = new_model()
    fit(model, late, stop, steps=3 if RANK == SIZE - 1 else 20, uneven="truncate", epochs=2)
    begun = COMM.allgather(stop.begun)
    # Two more than the shortest rank has: one tells, and one is under way meanwhile.
    assert begun == [*[2 * 5] * (SIZE - 1), 2 * 3] if SIZE > 1 else begun == [6], begun
    assert_replicas_are_equal(model)


def check_a_callback_that_waits_for_its_step_stops_one_step_later():
    class AtOnce(keras.callbacks.Callback):
        taken = 0

        def on_train_batch_end(self, batch, logs=None):
            self.taken += 1
            if RANK == 0 and batch == 2:
                self.model.stop_training = True

    stop = AtOnce()
    fit(new_model(), stop, steps=20)
    assert COMM.allgather(stop.taken) == [4 if SIZE > 1 else 3] * SIZE


def check_steps_are_counted_though_callbacks_are_late():
    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            fit_of_mine = fit_context.current(self.model)
            counted.append((fit_of_mine.meter.samples, fit_of_mine.meter.steps))

        def set_model(self, model):
            super().set_model(model)
            assert fit_context.current(model).meter.steps == 0

    counted = []
    fit(new_model(), Late(0.01), Count(), steps=6, epochs=2)
    assert counted == [(6 * BATCH, 6), (12 * BATCH, 12)], counted


def check_stateless_apply_with_a_loss_scale():
    variables = [keras.Variable(np.zeros(3, "float32"))]
    inner = keras.optimizers.SGD(1.0)
    optimizer = ddl.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    )
    optimizer.build(variables)

    @jax.jit
    def step(state, gradient, weights):
        return optimizer.stateless_apply(state, [gradient], weights)

    weights = [variable.value for variable in variables]
    state = [variable.value for variable in optimizer.variables]
    gradient = np.arange(3, dtype="float32") * (RANK + 1)
    before = gradient_reducer.reduced_steps()
    weights, state = step(state, gradient, weights)
    # A step that is not finite on one rank is left out on all of them.
    bad = np.full(3, np.inf if RANK == SIZE - 1 else 1.0, "float32")
    weights, state = step(state, bad, weights)
    want = -np.arange(3) * np.mean([rank + 1 for rank in range(SIZE)]) / 4
    np.testing.assert_allclose(np.asarray(weights[0]), want, rtol=1e-6)
    assert gradient_reducer.reduced_steps() - before == (2 if SIZE > 1 else 0)


def check_a_sum_in_a_jitted_step_has_gradients():
    @jax.jit
    def step(x):
        return jax.grad(lambda x: keras.ops.sum(ddl.allreduce(x * x, op="sum") * (RANK + 1)))(x)

    x = np.arange(4, dtype="float32") + RANK
    for _ in range(2):
        # Every rank's loss holds this rank's x.
        want = 2 * x * sum(rank + 1 for rank in range(SIZE))
        np.testing.assert_allclose(np.asarray(step(x)), want, rtol=1e-6)


def check_sums_live_as_long_as_what_is_compiled():
    def compiled(ahead):
        step = jax.jit(lambda x: jax.grad(lambda x: ddl.allreduce(x, op="sum")[0] * (RANK + 1))(x))
        return step.lower(x).compile() if ahead else step

    def sums():
        gc.collect()
        return sum(isinstance(each, in_step_sum.InStepSum) for each in gc.get_objects())

    x = np.arange(3, dtype="float32") + RANK
    want = [sum(rank + 1 for rank in range(SIZE)), 0, 0]
    before = sums()
    for ahead in (True, False):
        kept = compiled(ahead)
        np.testing.assert_allclose(np.asarray(kept(x)), want)
        for _ in range(4):
            np.testing.assert_allclose(np.asarray(compiled(ahead)(x)), want)
        assert sums() == before + 1
        np.testing.assert_allclose(np.asarray(kept(x)), want)
        del kept
        assert sums() == before


def check_sums_of_dropped_functions_end_after_the_deadline_of_a_late_rank():
    def run():
        step = jax.jit(lambda x: ddl.allreduce(x, op="sum"))
        np.testing.assert_allclose(np.asarray(step(np.ones(5, "float32"))), [SIZE] * 5)

    def registered():
        gc.collect()
        return sum(isinstance(each, Registration) for each in gc.get_objects())

    gc.collect()
    for deadline, grows in ((100, True), (0, True), (1, False)):
        with mock.patch.dict(os.environ, EASYDDL_STALL_ABORT=str(deadline)):
            run()
            before = registered()
            time.sleep(1.1)
            run()
            assert registered() - before == 2 * grows  # a sum and its gradients


def check_a_function_that_is_dropped_while_it_runs():
    def result(x):
        def step(x):
            late = jax.lax.fori_loop(0, 40, lambda _, y: y @ y * 1e-3, np.ones((400, 400)))
            return ddl.allreduce(x + 0 * late[0, :3], op="sum")

        return jax.jit(step)(x)

    x = np.arange(3, dtype="float32") + RANK
    found = result(x)
    gc.collect()
    np.testing.assert_allclose(np.asarray(found), np.arange(3) * SIZE + sum(range(SIZE)))


def check_collectives_on_jax_arrays():
    for dtype in ("float32", "bfloat16", "float16", "int32", "uint8", "bool"):
        x = jax.numpy.asarray([RANK, 1, 0]).astype(dtype)
        result = ddl.allreduce(x, op="max")
        assert isinstance(result, jax.Array) and result.dtype == x.dtype, result.dtype
        want = np.asarray([SIZE - 1, 1, 0]).astype(bool if dtype == "bool" else "float32")
        np.testing.assert_array_equal(np.asarray(result.astype(want.dtype)), want)
    error = fails(lambda: jax.jit(ddl.broadcast)(np.ones(2, "float32")))
    assert isinstance(error, TypeError) and "symbolic" in str(error), error


def check_a_gradient_that_is_sparse():
    layer = keras.layers.Embedding(6, 2)
    layer.build()
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
    before = layer.get_weights()[0]
    before = COMM.bcast(before)
    layer.set_weights([before])
    words = np.array([RANK, 5])
    _, found = gradients_of(lambda: keras.ops.sum(layer(words)), layer.trainable_variables)
    sparse = jax.experimental.sparse.BCOO.fromdense(found[0])
    optimizer.apply([sparse], layer.trainable_variables)
    want = np.zeros((6, 2), "float32")
    for rank in range(SIZE):
        want[rank] += 1 / SIZE
        want[5] += 1 / SIZE
    np.testing.assert_allclose(before - layer.get_weights()[0], want, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    run_checks(globals())
