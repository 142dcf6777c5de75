"""What is PyTorch's own: buckets that leave while the backward pass is under way, and its rest."""

import contextlib
import functools
import gc
import os
import signal
import tempfile
import time
import unittest.mock
import warnings

import keras
import numpy as np
import torch
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails
from mpi import run_checks
from steps import TAKES_SEVERAL_STEPS, fit_by_the_root

import easyddl as ddl
from easyddl.backends.torch import overlap
from easyddl.runtime import world

WIDTH = 6


def data(steps=5, size=4, rank=RANK):
    random = np.random.default_rng([31, rank])
    x = random.standard_normal((steps * size, WIDTH)).astype("float32")
    return x, np.sin(x.sum(1, keepdims=True)).astype("float32")


def three_layers():
    return [keras.layers.Dense(8, activation="tanh") for _ in range(3)]


def deep_model(kind=keras.Sequential, seed=1, layers=three_layers, **arguments):
    keras.utils.set_random_seed(seed)
    model = kind([keras.layers.Input((WIDTH,)), *layers(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **arguments)
    return model


def fit(model, *mine, part=None, batch_size=4, epochs=1, **arguments):
    """A fit in which each gradient is a bucket of its own."""
    x, y = data() if part is None else part
    return model.fit(
        x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0,
        callbacks=both(*mine, bucket_bytes=1), **arguments,
    )  # fmt: skip


@contextlib.contextmanager
def environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def noted_departures():
    """Notes what is submitted while a backward pass is under way, and how many buckets in all."""
    reducer = world.engine().core.Reducer
    name = "submit_on_gpu" if torch.cuda.is_available() else "submit"
    submit, backward = getattr(reducer, name), torch.Tensor.backward
    noted = {"ahead": 0, "all": 0}
    passes = []

    def noting_submit(*args, **kwargs):
        noted["all"] += 1
        noted["ahead"] += bool(passes)
        return submit(*args, **kwargs)

    def noting_backward(self, *args, **kwargs):
        passes.append(self)
        try:
            return backward(self, *args, **kwargs)
        finally:
            passes.pop()

    torch.Tensor.backward = noting_backward
    setattr(reducer, name, noting_submit)
    try:
        yield noted
    finally:
        torch.Tensor.backward = backward
        setattr(reducer, name, submit)


def weights_of(model):
    return [np.array(weight) for weight in model.get_weights()]


def assert_same_bits(some, others):
    assert [w.tobytes() for w in some] == [w.tobytes() for w in others]


def hooks_on(model):
    return [v for v in model.trainable_variables if v.value._post_accumulate_grad_hooks]


def check_buckets_leave_while_backward_runs():
    model = deep_model()
    with noted_departures() as noted:
        fit(model)
    if SIZE > 1:
        # Eight gradients a step, for four of the five: in the first they are registered, in the
        # second they are watched.
        assert noted["ahead"] == 8 * 3, noted
    assert_replicas_are_equal(model)
    assert not hooks_on(model)


def synchronized():
    """Layers whose backward pass exchanges something itself, half-way."""
    return [keras.layers.Dense(5), ddl.SyncBatchNormalization(), keras.layers.Dense(4)]


def check_with_and_without_the_same_bits():
    for make in (three_layers, synchronized):
        models = []
        for is_ahead in "10":
            with environment(EASYDDL_OVERLAP=is_ahead), noted_departures() as noted:
                model = deep_model(layers=make)
                fit(model, epochs=2)
            # The normalization's own exchange during the backward pass: once a step. On a GPU it
            # stops what is submitted early.
            on_gpu = torch.cuda.is_available()
            own = 10 if make is synchronized and not on_gpu else 0
            is_early = is_ahead == "1" and SIZE > 1 and not (on_gpu and make is synchronized)
            assert (noted["ahead"] > own) == is_early, noted
            assert_replicas_are_equal(model)
            models.append(model)
        assert_same_bits(weights_of(models[0]), weights_of(models[1]))


def check_equal_to_one_process():
    model, alone = deep_model(), deep_model()
    fit(model, epochs=3)
    parts = [data(rank=rank) for rank in range(SIZE)]
    for _ in range(3):
        for begin in range(0, 20, 4):
            alone.train_on_batch(
                *(np.concatenate([p[i][begin : begin + 4] for p in parts]) for i in (0, 1))
            )
    for weight, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-4, atol=1e-6)


def check_a_rank_that_sends_ahead_meets_one_that_does_not():
    whole = deep_model()
    with environment(EASYDDL_OVERLAP="0"):
        fit(whole)
    model = deep_model()
    with environment(EASYDDL_OVERLAP=str(RANK % 2)):
        fit(model)
    assert_same_bits(weights_of(model), weights_of(whole))


def check_the_environment_says_0_or_1():
    with environment(EASYDDL_OVERLAP="no"):
        if SIZE > 1:
            error = fails(lambda: fit(deep_model()))
            assert isinstance(error, ValueError) and "'no'" in str(error), error


def check_uneven_data():
    models = []
    for is_ahead in "10":
        model = deep_model()
        steps = 4 + 2 * RANK
        with environment(EASYDDL_OVERLAP=is_ahead), noted_departures() as noted:
            # The batches differ in size too, so that their weights do.
            part = data(steps, size=2 + RANK)
            fit(model, part=part, batch_size=2 + RANK, epochs=2)
        if SIZE > 1 and is_ahead == "1":
            assert noted["ahead"] == 8 * (2 * steps - 2), noted
        assert_replicas_are_equal(model)
        models.append(model)
    assert_same_bits(weights_of(models[0]), weights_of(models[1]))


class Gan(keras.Sequential):
    """Its generator's backward pass fills the discriminator's gradients too."""

    def __init__(self, layers):
        super().__init__(layers)
        keras.utils.set_random_seed(9)
        self.judge = keras.Sequential(
            [keras.layers.Input((1,)), keras.layers.Dense(4), keras.layers.Dense(1)]
        )

    def compile(self, **arguments):
        super().compile(**arguments)
        self.judges_optimizer = keras.optimizers.SGD(0.05)

    def train_step(self, data):
        x, y = data
        judge = self.judge.trainable_variables
        self.judge.zero_grad()
        loss = keras.ops.mean((self.judge(self(x).detach()) + self.judge(y) - 1) ** 2)
        loss.backward()
        self.judges_optimizer.apply([v.value.grad for v in judge], judge)
        mine = [v for layer in self.layers for v in layer.trainable_variables]
        for variable in mine:
            variable.value.grad = None
        fooled = keras.ops.mean((self.judge(self(x)) - 1) ** 2)
        fooled.backward()
        self.optimizer.apply([v.value.grad for v in mine], mine)
        return {"loss": loss.detach()}


def new_gan():
    keras.utils.set_random_seed(8)
    model = Gan([keras.layers.Input((WIDTH,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.05))
    return model


def check_a_gan():
    models = []
    for is_ahead in "10":
        with environment(EASYDDL_OVERLAP=is_ahead), noted_departures() as noted:
            model = new_gan()
            fit(model, epochs=2)
        if SIZE > 1 and is_ahead == "1":
            # The generator's four, not the discriminator's.
            assert noted["ahead"] == 4 * 8, noted
        assert_replicas_are_equal(model)
        models.append(model)
    for get in (lambda m: m.get_weights(), lambda m: m.judge.get_weights()):
        assert_same_bits(get(models[0]), get(models[1]))


class Fickle(keras.Sequential):
    """From its fourth step on it does otherwise than before."""

    how = None
    taken = 0

    def train_step(self, data):
        x, y = data
        self.taken += 1
        changes = self.taken >= 4
        self.zero_grad()
        loss = self.compute_loss(x, y, self(x))
        loss.backward(retain_graph=True)
        if changes and self.how == "again":
            loss.backward()
        found = [v.value.grad for v in self.trainable_variables]
        if changes and self.how == "clipped":
            torch.nn.utils.clip_grad_norm_([v.value for v in self.trainable_variables], 0.01)
        if changes and self.how == "others":
            found = [gradient * 2 for gradient in found]
        self.optimizer.apply(found, self.trainable_variables)
        return {"loss": loss.detach()}


def check_steps_that_change_are_an_error():
    for how, words in {
        "again": "A second backward pass",
        "clipped": "A gradient was changed or replaced",
        "others": "A gradient was changed or replaced",
    }.items():
        model = deep_model(Fickle)
        model.how = how
        if SIZE > 1:
            error = fails(lambda model=model: fit(model))
            assert isinstance(error, RuntimeError), error
            assert words in str(error) and "EASYDDL_OVERLAP=0" in str(error), error
            assert not hooks_on(model)
        model, alone = deep_model(Fickle), deep_model(Fickle)
        model.how = alone.how = how
        with environment(EASYDDL_OVERLAP="0"):
            fit(model)
        assert_replicas_are_equal(model)
    fit(deep_model())  # nothing of these is left behind


def check_gradients_that_are_changed_at_every_step():
    # So it has always been: nothing is sent ahead, and all is as with one process.
    for how in ("again", "clipped", "others"):
        results = []
        for is_ahead in "10":
            model = deep_model(Fickle)
            model.how, model.taken = how, 10
            with environment(EASYDDL_OVERLAP=is_ahead), noted_departures() as noted:
                fit(model)
            assert noted["ahead"] == 0, noted
            results.append(weights_of(model))
        assert_same_bits(*results)


class Branches(keras.Model):
    """A layer that no step uses, one that is frozen, and one that only some ranks use."""

    def __init__(self):
        super().__init__()
        self.first, self.unused, self.frozen, self.some, self.last = (
            keras.layers.Dense(WIDTH, name=name)
            for name in ("first", "unused", "frozen", "some", "last")
        )
        self.frozen.trainable = False

    def build(self, shape):
        for layer in (self.first, self.unused, self.frozen, self.some, self.last):
            layer.build(shape)

    def call(self, x):
        x = self.frozen(self.first(x))
        if RANK == 0:
            x = x + self.some(x)
        return self.last(x)[:, :1]


def check_parameters_without_a_gradient():
    results = []
    for is_ahead in "10":
        keras.utils.set_random_seed(3)
        model = Branches()
        model.build((None, WIDTH))
        model.compile("sgd", "mse")
        before = weights_of(model)
        with environment(EASYDDL_OVERLAP=is_ahead), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Gradients do not exist")
            with noted_departures() as noted:
                fit(model)
        assert_replicas_are_equal(model)
        if SIZE > 1 and is_ahead == "1":
            # The last bucket has the flags, which are known when the optimizer is called.
            assert noted["ahead"] == (3 + 2 * (RANK == 0)) * 3, noted
        moved = [a.tobytes() != b.tobytes() for a, b in zip(before, weights_of(model), strict=True)]
        # By place: first, unused, frozen, some, last; kernel and bias each.
        names = [w.path.split("/")[-2] for w in model.weights]
        for name, has_moved in zip(names, moved, strict=True):
            assert has_moved == (name in ("first", "some", "last")), (name, has_moved)
        results.append(weights_of(model))
    assert_same_bits(*results)


class Stream(torch.utils.data.IterableDataset):
    """Batches of a number that nobody knows."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def check_a_rank_without_batches_in_a_later_fit():
    results = []
    for is_ahead in "10":
        model = deep_model()
        ddl.DistributedOptimizer(model.optimizer, bucket_bytes=1)
        x, y = map(torch.from_numpy, data())
        batches = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 20, 4)]
        with environment(EASYDDL_OVERLAP=is_ahead), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            fit(model)
            # This one's step is a dry run, while the parameters have their hooks.
            mine = [] if RANK == SIZE - 1 and SIZE > 1 else batches
            loader = torch.utils.data.DataLoader(Stream(mine), batch_size=None)
            model.fit(loader, shuffle=False, verbose=0, callbacks=both())
            assert int(model.optimizer.iterations.numpy()) == 10
            fit(model)
        assert_replicas_are_equal(model)
        results.append(weights_of(model))
    assert_same_bits(*results)


def check_hooks_end_with_a_fit_that_raises():
    class Crash(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert bool(hooks_on(self.model)) == (SIZE > 1)
            if batch == 3:
                raise KeyError("on purpose")

    watching = set(overlap._watching)  # objects of earlier checks may still live
    model = deep_model()
    assert isinstance(fails(lambda: fit(model, Crash())), KeyError)
    assert not hooks_on(model)
    if RANK == 0:  # alone: would wait for others if anything were left
        model.fit(*data(), verbose=0)
    gc.collect()
    assert set(overlap._watching) <= watching


def check_two_optimizers_of_the_same_parameters():
    results = []
    for is_ahead in "10":
        with environment(EASYDDL_OVERLAP=is_ahead):
            variables = [keras.Variable(np.ones(3, "float32"), name="v")]
            some, others = (ddl.DistributedOptimizer(keras.optimizers.SGD(0.01)) for _ in range(2))
            for step in range(4):
                variables[0].value.grad = None
                loss = torch.sum(variables[0].value ** 2) * float(RANK + step)
                loss.backward()
                found = [variables[0].value.grad]
                some.apply(found, variables)
                others.apply(found, variables)
            results.append(variables[0].numpy().copy())
    np.testing.assert_array_equal(*results)
    value = np.ones(3)
    for step in range(4):
        gradient = 2 * value * np.mean([rank + step for rank in range(SIZE)])
        value = value - 0.02 * gradient
    np.testing.assert_allclose(results[0], value, rtol=1e-5)


def check_a_compiled_step():
    # A small one: compiling takes long.
    plain, compiled = (
        deep_model(layers=lambda: [keras.layers.Dense(4)], jit_compile=jit) for jit in (False, True)
    )
    assert not deep_model().jit_compile  # of Keras's "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's compiler
        fit(plain)
        fit(compiled)
    assert compiled.jit_compile
    for weight, want in zip(weights_of(compiled), weights_of(plain), strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-4, atol=1e-6)
    assert_replicas_are_equal(compiled)


def check_compiled_steps_of_uneven_ranks():
    """The last rank has fewer batches. From Keras 3.16 on, gradients come from autograd.grad."""
    parts = [data(3 if rank == SIZE - 1 else 5, rank=rank) for rank in range(SIZE)]

    def steps():
        for i in range(5):
            rows = slice(4 * i, 4 * i + 4)
            there = [[array[rows] for array in part] for part in parts if len(part[0]) > 4 * i]
            yield tuple(np.concatenate(arrays) for arrays in zip(*there, strict=True))

    few = {"layers": lambda: [keras.layers.Dense(4)]}  # compiling takes long
    compiled = deep_model(**few, jit_compile=True, steps_per_execution=1 + TAKES_SEVERAL_STEPS)
    alone = deep_model(**few)
    compile_of_torch = functools.partial(torch.compile, backend="eager")  # no C++ compiler
    with warnings.catch_warnings(), unittest.mock.patch("torch.compile", compile_of_torch):
        warnings.simplefilter("ignore")  # of PyTorch's compiler
        fit(compiled, part=parts[RANK])
    assert compiled.jit_compile
    if TAKES_SEVERAL_STEPS:  # from Keras 3.16 on, too
        assert all(variable.value.grad is None for variable in compiled.trainable_variables)
    fit_by_the_root(alone, steps(), steps_per_epoch=5, shuffle=False, verbose=0)
    for weight, want in zip(compiled.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-4, atol=1e-6)
    assert_replicas_are_equal(compiled)
    assert int(compiled.optimizer.iterations.numpy()) == 5


def check_a_model_in_ddp():
    with tempfile.NamedTemporaryFile() as store:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store.name}", rank=0, world_size=1
        )
        try:
            wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, 1))
            layer = keras.layers.TorchModuleWrapper(wrapped, output_shape=(None, 1))
            model = keras.Sequential([keras.layers.Input((WIDTH,)), layer])
            model.compile("sgd", "mse")
            error = fails(lambda: fit(model))
            assert isinstance(error, ValueError), error
            assert "DistributedDataParallel" in str(error) and "second time" in str(error)

            class Mine(keras.Sequential):
                pass

            model = deep_model(Mine)
            object.__setattr__(model, "_wrapped_by_me", wrapped)
            assert "_wrapped_by_me" in str(fails(lambda: fit(model)))
            plain = deep_model()
            if not hasattr(plain, "_initialize_ddp"):  # before Keras 3.16
                fit(plain)
                assert_replicas_are_equal(plain)
            else:
                assert "init_process_group" in str(fails(lambda: fit(plain)))
        finally:
            torch.distributed.destroy_process_group()
    fit(deep_model())


def check_masks_of_pytorchs_own_dropout():
    keras.utils.set_random_seed(5)  # equal seeds, and so equal masks, without easyddl

    class Noted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = torch.nn.Dropout(0.5)
            self.masks = []

        def forward(self, x):
            y = self.dropout(torch.ones_like(x))
            if self.training and not x.is_meta:
                self.masks.append(y.numpy(force=True).tobytes())
            return x * y

    runs = []
    for _ in range(2):
        noted = Noted()
        layer = keras.layers.TorchModuleWrapper(noted, output_shape=(None, WIDTH))
        model = deep_model(seed=5, layers=lambda layer=layer: [layer])
        fit(model)
        fit(model)
        assert_replicas_are_equal(model)
        masks = noted.masks[-10:]
        assert len(set(masks)) == 10
        runs.append(masks)
    assert runs[0] == runs[1]  # reproducible
    everyone = COMM.allgather(runs[0])
    assert len({mask for masks in everyone for mask in masks}) == 10 * SIZE


def check_tensors_that_need_gradients():
    tensor = torch.full((2, 3), float(RANK), requires_grad=True)
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        result = ddl.allreduce((tensor * 1).to(kind), "sum")
        assert result.dtype == kind and result.device == tensor.device
        assert not result.requires_grad
        assert torch.all(result == sum(range(SIZE)))
    turned = torch.arange(6.0).reshape(2, 3).T  # not contiguous
    assert torch.equal(ddl.allreduce(turned, "mean"), turned)
    parameter = torch.nn.Parameter(torch.full((3,), float(RANK)))
    ddl.broadcast_variables([parameter], root_rank=SIZE - 1)
    assert torch.all(parameter == SIZE - 1) and parameter.requires_grad


def check_gradients_that_do_not_lie_in_one_piece():
    variable = keras.Variable(np.zeros((3, 2), "float32"), name="v")
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
    gradient = torch.arange(6.0, device=variable.value.device).reshape(2, 3).T * (RANK + 1)
    kept = gradient.clone()
    optimizer.apply([gradient], [variable])
    assert torch.equal(gradient, kept)  # it was the caller's
    want = -np.arange(6.0).reshape(2, 3).T * np.mean([rank + 1 for rank in range(SIZE)])
    np.testing.assert_allclose(variable.numpy(), want, rtol=1e-6)


def check_a_step_that_a_signal_interrupts():
    """No rank takes its results for those of the next step."""
    if SIZE == 1:
        return
    variable = keras.Variable(np.zeros(3, "float32"), name="v")
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))

    def step():
        gradient = torch.full((3,), RANK + 1.0, device=variable.value.device)
        optimizer.apply([gradient], [variable])

    def interrupt(*_):
        raise TimeoutError("on purpose")

    step()
    np.testing.assert_allclose(variable.numpy(), -(SIZE + 1) / 2)
    before = signal.signal(signal.SIGALRM, interrupt)
    if RANK == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
    if RANK == 1:
        time.sleep(1.5)
    error = fails(step)
    signal.signal(signal.SIGALRM, before)
    assert isinstance(error, TimeoutError if RANK == 0 else RuntimeError), error
    later = fails(step)
    assert isinstance(later, RuntimeError), later
    reason = "given up by TimeoutError: on purpose"
    assert reason in str(later) and (reason in str(error) or RANK == 0), (error, later)
    np.testing.assert_allclose(variable.numpy(), -(SIZE + 1) / 2)


def check_a_sparse_embedding():
    device = keras.Variable(0.0).value.device
    embedding = torch.nn.Embedding(20, WIDTH, sparse=True, device=device)
    with torch.no_grad():
        embedding.weight.fill_(1.0)
    variable = keras.Variable(embedding.weight, name="table")
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            variable.value.grad = None
            embedding(torch.tensor([RANK, 10], device=device)).sum().backward()
            optimizer.apply([variable.value.grad], [variable])
    told = [str(each.message) for each in caught if "is sparse" in str(each.message)]
    assert len(told) == (1 if RANK == 0 and SIZE > 1 else 0), told
    want = np.ones((20, WIDTH), "float32")
    want[10] -= 3
    want[:SIZE] -= 3 / SIZE
    np.testing.assert_allclose(variable.numpy(), want, rtol=1e-5, atol=1e-6)


def check_a_loader_with_workers():
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 16 * SIZE

        def __getitem__(self, i):
            try:
                ddl.rank()
                failed = False
            except RuntimeError:
                failed = True
            assert failed  # a worker is no rank
            return torch.full((WIDTH,), float(i)), torch.tensor([float(i)])

    loader = ddl.split_data(torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=2))
    model = deep_model()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*")
        model.fit(loader, shuffle=False, verbose=0, epochs=2, callbacks=both())
    assert int(model.optimizer.iterations.numpy()) == 8
    assert_replicas_are_equal(model)


if __name__ == "__main__":
    run_checks(globals())
