"""A training step on JAX, which is a pure function that is traced."""

import contextlib
import functools

import jax

from easyddl.backends.base import Backend
from easyddl.backends.jax import private
from easyddl.backends.jax.tensors import is_symbolic
from easyddl.compat import keras_scope


class JaxStep(Backend):
    """The training step of a `JaxBackend`."""

    outlives_references = True  # a call returns before XLA has run it; XLA keeps no Python object

    def differentiable(self, forward, backward):
        # Not `jax.custom_gradient`, which would trace `backward` before the loss is known.
        function = jax.custom_vjp(forward)
        function.defvjp(lambda x: (forward(x), None), lambda _, upstream: (backward(upstream),))
        return function

    def unless(self, condition, act):
        act()  # XLA fuses it with the update, which it would not do with a branch

    def scope_of(self, x):
        return private.trace_of(x) if is_symbolic(x) else None

    def scope(self):
        return private.current_trace()

    def is_current(self, x):
        return not is_symbolic(x) or private.trace_of(x) is self.scope()

    def changing(self, train_step, model, prepare):
        @functools.wraps(train_step)
        def step(state, data):
            variables, change = prepare()
            result, after = train_step(state, data)
            if not variables:
                return result, after
            place_of = {id(v): i for i, v in enumerate(model.non_trainable_variables)}
            places = [place_of[id(variable)] for variable in variables]
            trainable, values, *others = after
            changed = change([state[1][i] for i in places], [values[i] for i in places])
            values = list(values)
            for i, value in zip(places, changed, strict=True):
                values[i] = value
            return result, (trainable, values, *others)

        return step

    def outside_of_step(self):
        # In a pure function variables have no values.
        return None if keras_scope.is_stateless() else contextlib.nullcontext()
