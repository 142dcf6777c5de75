"""Steps of a user's own, on whichever backend is in use."""

import functools
import types

import keras
import mpi
import numpy as np
from keras.src.backend.common.stateless_scope import get_stateless_scope

import easyddl as ddl

BACKEND = keras.backend.backend()
KERAS = tuple(map(int, keras.__version__.split(".")[:2]))

# Whether `steps_per_execution` may be above 1, which Keras refuses otherwise.
TAKES_SEVERAL_STEPS = BACKEND != "torch" or KERAS >= (3, 16)


def gradients_of(compute, variables):
    """The value of a function without arguments, and its gradients by variables.

    On PyTorch they are what `backward` leaves in the parameters, as in Keras's own step.
    """
    if BACKEND == "torch":
        for variable in variables:
            variable.value.grad = None
        value = compute()
        value.backward()
        return value.detach(), [variable.value.grad for variable in variables]
    if BACKEND == "jax":
        import jax

        outer = get_stateless_scope()
        values = [variable.value for variable in variables]

        def function(values):
            with keras.StatelessScope(zip(variables, values, strict=True)) as scope:
                if outer is not None:
                    scope.state_mapping = {**outer.state_mapping, **scope.state_mapping}
                return compute()

        return jax.value_and_grad(function)(values)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = compute()
    return value, tape.gradient(value, variables)


def fit_by_the_root(model, *arguments, **more):
    """Trains a model as one process does: on the root, whose variables the others' copies take.

    A reference that each rank trains for itself costs as much as what it is compared with.

    Args:
        model: Of all ranks.
        *arguments: Of its `fit`.
        **more: Of its `fit`.

    Returns:
        A namespace that has the `history` and the `epoch` of what `fit` returns.
    """

    def train():
        done = model.fit(*arguments, **more)
        state = optimizer.variables if optimizer is not None and optimizer.built else []
        numbers = [keras.ops.convert_to_numpy(variable) for variable in state]
        return done.history, done.epoch, model.get_weights(), numbers

    optimizer = getattr(model, "optimizer", None)
    history, epoch, weights, state = mpi.by_the_root(train)
    if ddl.rank() != 0:
        model.set_weights(weights)
        if state and not optimizer.built:
            optimizer.build(model.trainable_variables)
        for variable, value in zip(optimizer.variables if state else [], state, strict=True):
            variable.assign(value)
    return types.SimpleNamespace(history=history, epoch=epoch)


def stateful(train_step):
    """A `train_step(self, data)` that assigns variables, in the form that Keras has on JAX too.

    There a step is a function of a state. What that does not hold, such as the variables of a
    second optimizer, can be assigned in eager mode only.
    """
    if BACKEND != "jax":
        return train_step

    @functools.wraps(train_step)
    def step(self, state, data):
        lists = (
            self.trainable_variables, self.non_trainable_variables,
            self.optimizer.variables, self.metrics_variables,
        )  # fmt: skip
        pairs = [
            pair for variables, values in zip(lists, state, strict=True)
            for pair in zip(variables, values, strict=True)
        ]  # fmt: skip
        with keras.StatelessScope(pairs) as scope:
            logs = train_step(self, data)
        known = {id(variable) for variables in lists for variable in variables}
        for optimizer in (*vars(self).values(), *getattr(self, "others", [])):
            if isinstance(optimizer, keras.optimizers.Optimizer):
                for variable in optimizer.variables:
                    if id(variable) not in known and id(variable) in scope.state_mapping:
                        variable.assign(scope.get_current_value(variable))
        new = tuple([scope.get_current_value(v) for v in variables] for variables in lists)
        return logs, new

    return step


def in_a_graph(function):
    """A function that is compiled, where a custom loop would have it so: else itself."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def compiled(function):
    """A function that is compiled, where the backend compiles one that assigns no variables."""
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return in_a_graph(function)


def backend_variable(array):
    """A variable of the framework's own, not of Keras's."""
    if BACKEND == "torch":
        import torch

        return torch.as_tensor(array)
    if BACKEND == "jax":  # which has none
        return keras.Variable(array, dtype=np.asarray(array).dtype.name)
    import tensorflow as tf

    return tf.Variable(array)
