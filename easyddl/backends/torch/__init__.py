"""PyTorch's door."""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import os

import keras
import ml_dtypes
import numpy as np
import torch

from easyddl.backends import deferred_build
from easyddl.backends.host_step_meter import HostStepMeter
from easyddl.backends.torch import rehearsal
from easyddl.backends.torch.exchange import Exchange, has_rows, to_dense
from easyddl.compat import keras_layer, keras_trainer
from easyddl.runtime import affinity, launcher

__all__ = ["Exchange", "has_rows", "to_dense"]


def configure():
    """Gives this rank its share of the machine, where the user has set nothing."""
    if launcher.size() is None:
        return
    if launcher.knows_local_rank():
        pin_gpu(launcher.local_rank())
    if launcher.local_size() > 1:
        _share_cores()


def pin_gpu(local_rank):
    """Has PyTorch compute on the GPU of this number, unless the user has chosen one."""
    # Keras's "cuda" is PyTorch's current device. One that was set before is the user's choice.
    if "KERAS_TORCH_DEVICE" in os.environ or not torch.cuda.is_available():
        return
    if torch.cuda.is_initialized() and torch.cuda.current_device() != 0:
        return
    torch.cuda.set_device(local_rank % torch.cuda.device_count())


def _share_cores():
    if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(os.environ):
        return
    # Left to itself PyTorch takes every core, or one thread of each where there are two.
    every = len(os.sched_getaffinity(0))
    if torch.get_num_threads() in (every, every // 2):
        torch.set_num_threads(min(affinity.compute_threads(), torch.get_num_threads()))


def is_tensor(x):
    """Whether PyTorch or Keras made `x`."""
    return isinstance(x, torch.Tensor | keras.Variable)


def is_symbolic(x):
    """Whether a tensor has no values, because Keras infers shapes with it."""
    return isinstance(x, torch.Tensor) and x.is_meta


infers_shapes = is_symbolic


def is_float(x):
    """Whether a tensor or variable holds floating-point numbers."""
    return _tensor(x).is_floating_point()


def _tensor(x):
    return x.value if isinstance(x, keras.Variable) else x


def to_numpy(x):
    """The values of a tensor or variable."""
    if is_symbolic(_tensor(x)):
        raise TypeError(
            "`x` is a symbolic tensor: Keras infers shapes with it, and collectives take values. "
            f"Call them outside of layers. Received: {x}"
        )
    x = _tensor(x).detach().cpu().resolve_conj().resolve_neg()
    if x.dtype == torch.bfloat16:  # NumPy has no such type of its own
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def from_numpy(array, like):
    """A tensor of the same dtype, on the device of the tensor or variable `like`."""
    if array.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor.to(_tensor(like).device)


def is_variable(x):
    """Whether `x` is a variable of the framework's own."""
    return isinstance(x, torch.Tensor)


def assign(variable, value):
    """Gives a variable of the framework's own the values of an array."""
    with torch.no_grad():
        variable.copy_(from_numpy(np.array(value), variable))


def uncompiled(function, wholly=False):
    """A function that `torch.compile` leaves alone, and with `wholly` what it calls too."""
    return torch.compiler.disable(function, recursive=wholly)


def check_model(model):
    """Raises an error if PyTorch reduces the model's gradients already."""
    for path, module in _modules(model):
        if isinstance(module, _reducers()):
            raise ValueError(
                f"{type(module).__name__} averages gradients over processes, and so does "
                "easyddl: each would be averaged twice. Train the module that it wraps, without "
                "torch.distributed, and start the ranks by mpirun. "
                f"Received: model {model.name!r} with {path}"
            )
    wraps = keras_trainer.wraps_in_ddp()  # Keras 3.16 and later
    if wraps and torch.distributed.is_available() and torch.distributed.is_initialized():
        raise ValueError(
            f"Keras {keras.__version__} wraps models in DistributedDataParallel where "
            "torch.distributed has been initialised, and easyddl averages gradients too: each "
            "would be averaged twice. Leave out torch.distributed.init_process_group, and start "
            f"the ranks by mpirun. Received: model {model.name!r}"
        )


def _modules(model):
    """All modules of a model, with what leads to each."""
    for layer in keras_layer.layers_of(model):
        for name, module in layer.named_modules():
            yield f"{layer.name}.{name}" if name else layer.name, module
    for name, value in vars(model).items():  # past Keras's and PyTorch's tracking
        if isinstance(value, torch.nn.Module):
            yield name, value


@functools.cache
def _reducers():
    kinds = [torch.nn.parallel.DistributedDataParallel]
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        kinds.append(FullyShardedDataParallel)
    return tuple(kinds)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What is known of a tensor of every batch."""

    shape: tuple
    dtype: str


def begin_without_batch(model):
    """Has Keras begin a fit of a model on a rank that has no batch to build it with."""
    return deferred_build.put_off_without_batch(model)


def on_first_batch(model, act):
    """Has `act` called with the first fit's batch structure, before the first step."""
    step = model.train_function

    def first(batches):
        model.train_function = step
        act(keras.tree.map_structure(_spec, batches[0]))
        return step(batches)

    model.train_function = first


def _spec(x):
    if x is None:
        return None
    return _Spec((None, *x.shape[1:]), keras.backend.standardize_dtype(x.dtype))


def symbolic_batch(spec):
    """A batch of a structure, in Keras's symbols."""
    return keras.tree.map_structure(
        lambda each: None if each is None else keras.KerasTensor(each.shape, each.dtype), spec
    )


def builds_in_step(model):
    """Never: Keras builds an optimizer before."""
    return False


def build(model, spec):
    """Makes a model's variables before its first step, by a batch's structure: always `True`."""
    keras_trainer.build(model, symbolic_batch(spec))
    return True


def trace_step(model, spec):
    """Takes a step with a made-up batch of a structure, of which nothing remains.

    PyTorch's steps are not traced: what they exchange is known once they are taken.
    """

    def made_up(each):
        # Two samples: there are layers that refuse one.
        return None if each is None else keras.ops.zeros((2, *each.shape[1:]), each.dtype)

    with rehearsal.rehearsal(model):
        model.train_step(keras.tree.map_structure(made_up, spec))


def once_there_is_a_batch():
    """A step is taken where there is a batch, and only there."""
    return contextlib.nullcontext()


def changing(train_step, model, begin):
    """A `train_step` that gives variables other values than it has computed.

    Args:
        train_step: As Keras's trainer has it.
        model: The model of the step.
        begin: Function that is called before the step. It returns a list of Keras variables, and a
            function of two lists of their values, before the step and after it, that returns the
            values that they get.
    """

    @functools.wraps(train_step)
    def step(data):
        changed, change = begin()
        before = [variable.value.detach().clone() for variable in changed]
        result = train_step(data)
        if changed:
            with torch.no_grad():
                after = [variable.value.detach() for variable in changed]
                for variable, value in zip(changed, change(before, after), strict=True):
                    variable.assign(value)
        return result

    return step


def outside_of_step():
    """A context in which variables have values: they always do."""
    return contextlib.nullcontext()


def differentiable(forward, backward):
    """A function of a tensor, with a function of the upstream gradient that makes its own."""

    @keras.ops.custom_gradient
    def function(x):
        def gradient(*arguments, upstream=None):
            if upstream is None:
                (upstream,) = arguments
            return backward(upstream)

        return forward(x), gradient

    return function


def unless(condition, act):
    """Calls `act`, which changes nothing where `condition` holds, where it does not."""
    keras.ops.cond(condition, lambda: None, act)


def scope_of(x):
    """There are no graphs to tell apart."""
    return None


def is_current(x):
    """Whether a tensor noted earlier can be used where the code is now."""
    return True


def begun(result):
    """What waits for a step; `None` where it is done, because all is done at once on the CPU."""
    if not _uses_gpu():
        return None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def finish(model):
    """Waits for what has been queued on a GPU."""
    if _uses_gpu():
        torch.cuda.synchronize()


def _uses_gpu():
    return keras.ops.zeros(()).is_cuda


def synced(model):
    """Variables hold their values at any time."""


def unwrapped(function):
    """The function that Keras's trainer has made: nothing wraps it here."""
    return function


def skip_steps(model, steps):
    """Has the first steps of a fit draw their data and train nothing."""
    step = model.train_function
    left = steps

    def skip(batches):
        nonlocal left
        left -= len(batches)
        if left <= 0:
            model.train_function = step
        return model.get_metrics_result()

    model.train_function = skip


def random_state():
    """Where PyTorch's own generators stand, in a form that JSON can hold."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return {name: base64.b64encode(s.numpy().tobytes()).decode() for name, s in states.items()}


def set_random_state(captured):
    """Sets them back to what `random_state` returned."""
    for name, text in captured.items():
        state = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
        if name == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state)


def op_seeds():
    """`None`: operations have no seeds of their own."""
    return None


def set_op_seeds(seeds):
    """There are none to set."""


def random_state_of_another_rank(captured, distance):
    """What those of a rank would be, by those of another one that is so many ranks before it."""
    if distance == 0:
        return captured
    words = hashlib.sha256(f"{sorted(captured.items())} {distance}".encode()).digest()
    seed = int.from_bytes(words[:8], "little", signed=True)
    generators = {name: torch.Generator(device=name).manual_seed(seed) for name in captured}
    states = {name: generator.get_state() for name, generator in generators.items()}
    return {name: base64.b64encode(s.numpy().tobytes()).decode() for name, s in states.items()}


class StepMeter(HostStepMeter):
    """Counts what steps are called with."""

    def watch(self, fit):
        """Measures the steps of a fit. To be called in a callback's `set_model`."""
        fit.wrap_train_step(self._counted)

    def _counted(self, train_step):
        """A `train_step(data)` that counts what it takes."""

        @functools.wraps(train_step)
        def step(data):
            if not rehearsal.is_under_way():
                self.count(data)
            return train_step(data)

        return step
