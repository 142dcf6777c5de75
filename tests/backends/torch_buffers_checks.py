"""The buffers of PyTorch's modules in a model, which are no Keras variables."""

import functools
import warnings

import keras
import numpy as np
import torch
from fits import COMM, RANK, SIZE, both, fails, in_shared_folder, said
from interrupted_fits import assert_interrupted_alike
from mpi import run_checks

import easyddl as ddl
from easyddl.backends.torch import dry_run as torch_dry_run
from easyddl.training.state import layer_state, preserved_state

WIDTH, BATCH, EPOCHS = 6, 4, 2


def batches(count, rank=RANK):
    """Batches of one rank alone."""
    random = np.random.default_rng([41, rank])
    x = (random.standard_normal((count, BATCH, WIDTH)) * (1 + rank) + rank).astype("float32")
    return [(torch.from_numpy(each), torch.from_numpy(each[:, :1])) for each in x]


class Stream(torch.utils.data.IterableDataset):
    """Batches of a number that Keras does not know."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def new_model(*modules, kind=keras.layers.TorchModuleWrapper, rate=0.1):
    layers = [kind(module, output_shape=(None, WIDTH)) for module in modules]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def fit(model, mine, *callbacks, epochs=EPOCHS, **arguments):
    loader = torch.utils.data.DataLoader(Stream(mine), batch_size=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        model.fit(
            loader, epochs=epochs, shuffle=False, verbose=0, callbacks=both(*callbacks, **arguments)
        )


def buffers_of(module):
    return {name: buffer.numpy(force=True).copy() for name, buffer in module.named_buffers()}


def assert_same_on_all(model, module):
    """All ranks hold the same buffers, and make the same predictions."""
    x = torch.cat([x for x, _ in batches(2, rank=0)])
    mine = [each.tobytes() for each in buffers_of(module).values()]
    mine.append(model.predict(x, verbose=0).tobytes())
    assert COMM.allgather(mine) == [mine] * SIZE


def running_statistics(make, steps):
    """The statistics that PyTorch computes on each rank's batches, averaged after each epoch."""
    modules = [make() for _ in range(SIZE)]
    parts = [batches(steps[rank], rank) for rank in range(SIZE)]
    for _ in range(EPOCHS):
        for module, part in zip(modules, parts, strict=True):
            for x, _ in part:
                module(x)
        means = {
            name: np.average([buffers_of(m)[name] for m in modules], axis=0, weights=steps)
            for name in ("running_mean", "running_var")
        }
        count = max(int(module.num_batches_tracked) for module in modules)
        for module in modules:
            module.load_state_dict({
                **module.state_dict(),
                **{name: torch.from_numpy(mean) for name, mean in means.items()},
                "num_batches_tracked": torch.tensor(count),
            })  # fmt: skip
    return buffers_of(modules[0])


def check_running_statistics_are_averaged():
    even, uneven = [3] * SIZE, [3 + rank for rank in range(SIZE)]
    for momentum, steps in ((0.1, even), (0.1, uneven), (None, even)):

        def make(momentum=momentum):
            return torch.nn.BatchNorm1d(WIDTH, momentum=momentum)

        module = make()
        model = new_model(module)
        mine = batches(steps[RANK])
        text = said(functools.partial(fit, model, mine, check_replicas=1))
        want = running_statistics(make, steps)
        for name, buffer in buffers_of(module).items():
            np.testing.assert_allclose(buffer, want[name], rtol=1e-5, atol=1e-6, err_msg=name)
        assert_same_on_all(model, module)
        assert "warning" not in text, text


def check_ranks_without_batches():
    module = torch.nn.BatchNorm1d(WIDTH)
    model = new_model(module)
    steps = [3] * max(1, SIZE - 1) + [0] * (SIZE > 1)
    fit(model, batches(steps[RANK]))
    want = running_statistics(lambda: torch.nn.BatchNorm1d(WIDTH), steps)
    for name, buffer in buffers_of(module).items():
        np.testing.assert_allclose(buffer, want[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert_same_on_all(model, module)


class Projection(torch.nn.Module):
    """Buffers that do not change, which each rank has drawn itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.randn(WIDTH, WIDTH))
        self.register_buffer("order", torch.randperm(WIDTH))
        self.register_buffer("shift", torch.randn(WIDTH, dtype=torch.float64), persistent=False)

    def forward(self, x):
        return (x @ self.matrix)[:, self.order] + self.shift.to(x.dtype)


def check_buffers_are_those_of_the_root():
    torch.manual_seed(100 + RANK)
    module = Projection()
    model = new_model(module)
    root = SIZE - 1
    want = COMM.bcast(buffers_of(module), root)
    first = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: first.append(buffers_of(module))
    )
    x = torch.cat([x for x, _ in batches(3)])
    last = ddl.DDLGlobalVariablesCallback(root_rank=root)
    model.fit(x, x[:, :1], verbose=0, callbacks=[ddl.DDLCallback(), note, last])
    for found in (first[0], buffers_of(module)):
        for name, buffer in found.items():
            np.testing.assert_array_equal(buffer, want[name])
    assert_same_on_all(model, module)


def check_spectral_norms():
    torch.manual_seed(100 + RANK)
    linear = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    module = torch.nn.Sequential(
        torch.nn.utils.parametrizations.spectral_norm(linear[0]),
        torch.nn.utils.spectral_norm(linear[1]),
    )
    model = new_model(module)
    # The vectors are computed from the weights, in each step anew.
    text = said(lambda: fit(model, batches(3 + RANK)))
    assert "warning" not in text, text
    assert_same_on_all(model, module)


class Total(torch.nn.Module):
    """Sums up its batches in a tensor that it replaces, and counts them in another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training and not x.is_meta:
            self.total = self.total + x.detach().sum()
            self.count += 1
        return x + 0.01 * self.total


def total_of(ranks, epochs=EPOCHS):
    parts = [x for rank in ranks for x, _ in batches(3, rank)]
    return epochs * float(torch.cat(parts).double().sum())


def check_other_buffers_become_the_roots():
    module = Total()
    model = new_model(module, rate=1e-4)
    text = said(lambda: fit(model, batches(3), check_replicas=1))
    np.testing.assert_allclose(module.total.numpy(force=True), total_of([0]), rtol=1e-4)
    assert int(module.count) == 3 * EPOCHS
    assert_same_on_all(model, module)
    if RANK == 0 and SIZE > 1:
        assert text.count("warning") == 1 and "module.total'" in text, text
        assert "register_layer" in text, text
    else:
        assert "warning" not in text, text


def check_buffers_that_are_declared_to_be_sums():
    class Wrapper(keras.layers.TorchModuleWrapper):
        pass

    ddl.register_layer(Wrapper, merge={"total": "sum"})
    try:
        module = Total()
        model = new_model(module, kind=Wrapper, rate=1e-4)
        text = said(lambda: fit(model, batches(3)))
    finally:
        del layer_state._merges[Wrapper]
    np.testing.assert_allclose(module.total.numpy(force=True), total_of(range(SIZE)), rtol=1e-4)
    assert_same_on_all(model, module)
    assert "warning" not in text, text


class Rotations(torch.nn.Module):
    """A cache that grows with the batches of a rank, and a note of its length."""

    def __init__(self):
        super().__init__()
        self.length = 1
        self.register_buffer("angles", torch.arange(1.0), persistent=False)

    def forward(self, x):
        length = BATCH + RANK
        if self.training and not x.is_meta and self.length < length:
            self.length, self.angles = length, torch.arange(float(length))
        return x * torch.cos(self.angles[self.length - 1])


def check_caches_of_different_shapes():
    module = Rotations()
    model = new_model(module)
    text = said(lambda: [fit(model, batches(2)) for _ in range(2)])
    np.testing.assert_array_equal(module.angles.numpy(force=True), np.arange(BATCH + RANK))
    assert "warning" not in text, text


class Changes(torch.nn.Module):
    """Changes a buffer in place, replaces one, and replaces one that it does not save."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.register_buffer("replaced", torch.ones(2))
        self.register_buffer("cache", torch.ones(2), persistent=False)
        self.register_buffer("size", torch.ones(()), persistent=False)

    def forward(self, x):
        if self.training and not x.is_meta:
            self.replaced = self.replaced + 1
            self.cache = torch.ones(3)
            self.size += 1
        return self.norm(x)


def check_a_dry_run_leaves_buffers_as_they_were():
    module = Changes()
    model = new_model(module)
    before = buffers_of(module)
    with torch_dry_run.dry_run(model, preserved_state.PreservedState(model)):
        model.train_step(batches(1)[0])
        assert int(module.norm.num_batches_tracked) == 1 and int(module.size) == 2
    after = buffers_of(module)
    # The module counts on the new size of this one.
    assert after.pop("cache").shape == (3,) and before.pop("cache").shape == (2,)
    for name, buffer in after.items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=name)


def check_a_synchronized_normalization():
    model = new_model(torch.nn.Sequential(torch.nn.Identity(), torch.nn.SyncBatchNorm(WIDTH)))
    if SIZE > 1:
        error = fails(lambda: fit(model, batches(2)))
        assert isinstance(error, ValueError), error
        assert "ddl.SyncBatchNormalization" in str(error) and "module.1" in str(error), error


def assert_buffers_go_on(folder, at, epochs_left, **arguments):
    made = []

    def make():
        made.append(torch.nn.Sequential(Total(), torch.nn.BatchNorm1d(WIDTH)))
        return new_model(made[-1], rate=1e-3)

    assert_interrupted_alike(folder, make, at, epochs_left, **arguments)
    whole, _, again = (buffers_of(module) for module in made)
    assert len(whole) == 5
    for name, want in whole.items():
        assert again[name].tobytes() == want.tobytes(), (name, again[name], want)


@in_shared_folder
def check_an_interrupted_training_goes_on(folder):
    assert_buffers_go_on(folder, (2, 1), [2, 3])


@in_shared_folder
def check_it_goes_on_in_the_middle_of_an_epoch(folder):
    assert_buffers_go_on(folder, (2, 4), [2, 3], save_freq=3)


if __name__ == "__main__":
    run_checks(globals())
