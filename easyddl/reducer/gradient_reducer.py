"""Averages the gradients of one optimizer over all ranks."""

import math

from keras import ops

from easyddl import backends
from easyddl.reducer.gradient_list import GradientList
from easyddl.reducer.in_step_sum import InStepRows
from easyddl.reducer.reduction_options import ReductionOptions
from easyddl.runtime import settled_errors, world
from easyddl.steps import context


class GradientReducer:
    """Averages the gradients of one optimizer over all ranks.

    Args:
        options: `ReductionOptions`, or `None` for the defaults.
        weight: Function without arguments. It returns the weight of this rank's batch in the step
            that is being traced or run, or `None` if the weight is unknown.
        as_ready: Boolean. Whether a backward pass computes the gradients, so that the first buckets
            can be submitted before the last gradient is computed.
        at_first: Function of a list of variables, or `None`. All ranks call it together before they
            first register gradients, except in a fit with a `DDLCallback`.

    Attributes:
        as_ready: The argument of this name.
    """

    def __init__(self, options=None, weight=None, as_ready=True, at_first=None):
        self._options = options or ReductionOptions()
        self._at_first = at_first
        self._weight = weight or (lambda: None)
        self.as_ready = as_ready
        # `GradientList`, by the communicator over which it was registered, by whether the step runs
        # eagerly, and by the identities of its variables
        self._lists = {}
        self._watched = set()  # keys of the lists whose buckets are submitted as they are ready
        # `InStepRows` of variables that gradients overwrite, by communicator and variable
        self._ranges = {}

    def mean(self, grads, variables, is_present=None):
        """Returns the mean of each gradient over all ranks; `None` where no rank has one.

        The first call with a list of variables registers it with the other ranks. When one rank
        traces a step again, it finds the registration.

        Args:
            grads: List of gradient tensors; an item is `None` if a variable has no gradient.
            variables: List of the variables of these gradients.
            is_present: List of booleans or `None`: see `GradientList.mean`.
        """
        if world.size() == 1 or len(grads) != len(variables):
            return grads  # the optimizer raises an error for lists of different lengths
        averaged = [i for i, variable in enumerate(variables) if not is_overwritten(variable)]
        mine = [grads[i] for i in averaged]
        gradients = self._list_of(mine, [variables[i] for i in averaged])
        is_present = is_present and [is_present[i] for i in averaged]
        means = gradients.mean(mine, self._weight(), is_present)
        if len(averaged) == len(grads):
            return means
        result = self.overwriting(grads, variables)
        for i, mean in zip(averaged, means, strict=True):
            result[i] = mean
        return result

    def _list_of(self, grads, variables):
        key = (world.communicator().id, backends.require().is_eager(), *map(id, variables))
        if key not in self._lists:
            self._register(key, grads, variables)
        if self.as_ready and key not in self._watched:
            self._watched.add(key)
            # The ranks have registered, so an error ends only these reductions.
            settled_errors.call(self._lists[key].watch, self.give_up, self._weight)
        return self._lists[key]

    @world.on_all_ranks("The registration of gradients")
    def _register(self, key, grads, variables):
        with context.Call("an update of an optimizer"):
            # In a fit with a `DDLCallback`, some ranks may have no batch.
            if self._at_first is not None and context.step() is None:
                at_first, self._at_first = self._at_first, None
                at_first(variables)
            self._lists[key] = GradientList(grads, variables, self._options)

    def register(self, grads, variables):
        """Registers gradients in a step that does not yet average them.

        All ranks must register, also a rank that has no later step.

        Args:
            grads: List of gradient tensors.
            variables: List of the variables of these gradients.
        """
        if world.size() > 1 and variables:
            self._list_of(grads, variables).note()

    def overwriting(self, grads, variables):
        """Replaces gradients that overwrite their variables by the maximum over all ranks.

        Variables of this kind are the ranges of float8 layers: the largest number that a layer has
        seen. The other gradients are returned unchanged.

        Args:
            grads: List of gradient tensors.
            variables: List of the variables of these gradients.
        """
        result = list(grads)
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if not is_overwritten(variable) or world.size() == 1:
                continue
            count = math.prod(variable.shape)
            key = world.communicator().id, id(variable)
            if key not in self._ranges:
                self._ranges[key] = InStepRows(f"the range {variable.name}", count)
            rows = self._ranges[key](ops.cast(ops.reshape(grad, (count,)), "float32"))
            result[i] = ops.cast(ops.reshape(ops.max(rows, axis=0), variable.shape), grad.dtype)
        return result

    def forget_weights(self):
        """Makes the next mean independent of the weights of the steps before.

        These round the factors of the next step's gradients. All ranks call it between the same two
        steps.
        """
        for each in self._lists.values():
            each.forget_weights()

    def pause(self):
        """Stops submitting gradients as soon as they are ready, until the next call of `mean`.

        Between two fits, a backward pass may belong to the user's own code.
        """
        for each in self._lists.values():
            each.unwatch()
        self._watched.clear()

    def give_up(self, error):
        """Ends the reductions on all ranks after an error of this rank: see `Registration`."""
        for each in (*self._lists.values(), *self._ranges.values()):
            each.give_up(error)

    def close(self):
        """Ends all registrations."""
        for each in self._lists.values():
            each.close()
        self._lists.clear()
        self._ranges.clear()


def is_overwritten(variable):
    """Returns whether a variable's gradient overwrites it, as for the ranges of float8 layers."""
    return getattr(variable, "overwrite_with_gradient", False)


def reduced_steps():
    """Returns in how many steps this process has averaged gradients with the other ranks."""
    return world.engine().core.reduced_steps()
