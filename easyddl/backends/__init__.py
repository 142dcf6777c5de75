"""One door per Keras backend, each with the same functions.

A door is a module named as Keras names the backend. It is the only place that imports its
framework, and it offers:

- `configure()`: shares the machine's cores and GPUs among its ranks, before the framework
  takes all of them. Called at import.
- `pin_gpu(local_rank)`: has the framework use the GPU of this number, where the user has chosen
  none and it is not too late.
- `is_tensor(x)`, `is_symbolic(x)`, `is_float(x)`, `to_numpy(x)`, `from_numpy(array, like)`.
- `infers_shapes(x)`: whether Keras infers shapes with a tensor, in which nothing is exchanged.
- `is_variable(x)`, `assign(variable, array)`: for variables of the framework's own.
- `uncompiled(function, wholly=False)`: a function that the framework's compiler leaves alone, and
  with `wholly` what it calls too; where it compiles Python's code.
- `Exchange(number, buckets, shapes)`: a list of gradients' way into the engine. Its
  `reduce(gradients, weight)` averages them over all ranks, inside a compiled step too; its
  `zeros(dtype, shape)` stands in for a gradient that this rank does not have. `watch(variables,
  weight)` lets gradients leave before `reduce` is called; `unwatch()` ends that; `stop()` comes
  before the engine ends its part, and `close()` after.
- `differentiable(forward, backward)`: a function of a tensor with a gradient of its own.
- `begin_without_batch(model)`: has Keras begin a fit on a rank that has no batch; returns a
  function that takes that back.
- `check_model(model)`: raises an error if the model's step cannot exchange gradients.
- `on_first_batch(model, act)`: calls `act(spec)` with the structure of the first batch of data of
  a fit, before its first step.
- `symbolic_batch(spec)`: a batch of such a structure, of `keras.KerasTensor`.
- `build(model, spec)`: makes a model's variables by such a structure, as its own step would;
  returns `False` where only the first step can.
- `builds_in_step(model)`: whether a model's optimizers get their variables in its first step.
- `trace_step(model, spec)`: traces the model's step for a rank that has no batch.
- `once_there_is_a_batch()`: a context in which a compiled step's updates wait for its batch.
- `changing(train_step, model, begin)`: a `train_step` that gives some variables other
  values than it has computed.
- `outside_of_step()`: a context in which variables have values while a step is traced or taken;
  `None` where there is none.
- `unless(condition, act)`: calls `act`, which changes nothing where a scalar tensor is true; it
  may be left out then.
- `scope_of(x)`: an object that stands for the graph that a tensor belongs to, or `None`.
- `is_current(x)`: whether a tensor noted earlier in a step can be used where the code is now.
- `unwrapped(function)`: the function of a model's steps that Keras's trainer has made, of what the
  model has when `on_train_begin` is called.
- `begun(result)`: a function that waits until the step is done that has returned this; `None` if
  it is done.
- `finish(model)`: waits until all steps that Keras has begun are done.
- `synced(model)`: has a model's variables hold what they are after the last step.
- `random_state()`, `set_random_state(state)`: of the framework's own generators, in a form that
  JSON can hold, or `None`; `random_state_of_another_rank(state, distance)`.
- `op_seeds()`, `set_op_seeds(seeds)`: what the framework's operations take their seeds from, a pair
  whose first is an integer; or `None`.
- `skip_steps(model, steps)`: the first steps of a fit draw their data and train nothing.
"""

import importlib

import keras

from easyddl.runtime import launcher

_DOORS = ("tensorflow", "jax", "torch")


def name():
    """The active Keras backend's name."""
    return keras.backend.backend()


def find():
    """The active backend's door, or `None` if it has none yet."""
    return importlib.import_module(f"easyddl.backends.{name()}") if name() in _DOORS else None


def require():
    """The active backend's door; an error if it has none yet."""
    door = find()
    if door is None:
        raise NotImplementedError(
            f"easyddl trains on these Keras backends so far: {', '.join(_DOORS)}. Set "
            f"KERAS_BACKEND to one of them. Received: {name()}"
        )
    return door


def pin_gpu_of(world):
    """Gives this rank a GPU of its own once MPI tells its place, where no launcher did at import.

    Args:
        world: `_core.World`.
    """
    if world.size > 1 and not launcher.knows_local_rank():
        require().pin_gpu(world.local_rank)


def door_of(x):
    """The active backend's door if `x` is one of its tensors, else `None`."""
    door = find()
    return door if door is not None and door.is_tensor(x) else None
