"""The hook on an optimizer: gradients are averaged over all ranks before they are applied."""

import contextlib
import functools
import math
import weakref

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_optimizer, patches
from easyddl.reducer.batch_weight import PLAIN
from easyddl.reducer.gradient_reducer import Exchange
from easyddl.reducer.in_step_sum import StepRows
from easyddl.runtime import world

_HOOK = "_easyddl_averager"

_applying = []  # the optimizers whose hooked `apply` is under way


class Averager:
    """Averages the gradients of one optimizer over all ranks.

    Args:
        bucket_bytes: Integer, or `None` for a size that is measured.
        weight: Function without arguments: what this rank's batch counts for in the step that is
            being traced or run. `None` where nothing tells.
        as_they_come: Boolean. Whether the gradients are those that a backward pass computes, so
            that they may set off before the last of them is there.
        sparse_as_dense: Boolean. Whether sparse gradients are exchanged as dense ones.
    """

    def __init__(self, bucket_bytes=None, weight=None, as_they_come=True, sparse_as_dense=False):
        self._bucket_bytes = bucket_bytes
        self._sparse_as_dense = sparse_as_dense
        self._weight = weight or (lambda: None)
        self._as_they_come = as_they_come
        self._rows = {}  # of variables that their gradients overwrite, by identity
        self._watched = set()  # of these, since `pause`
        self._exchanges = {}  # with their variables, by the identities of these

    def mean(self, grads, variables):
        """The mean of each gradient over all ranks; `None` where no rank has one.

        A list of variables is registered with the other ranks when it comes for the first time.
        A step that is traced again later, by one rank alone, finds it.

        Args:
            grads: List of gradient tensors, or `None` where there is none.
            variables: The variables they belong to.
        """
        if world.size() == 1 or len(grads) != len(variables):
            return grads  # the optimizer says what is wrong with the lengths
        if any(map(_is_overwritten, variables)):
            averaged = [i for i, v in enumerate(variables) if not _is_overwritten(v)]
            means = self.mean([grads[i] for i in averaged], [variables[i] for i in averaged])
            result = self.overwriting(grads, variables)
            for i, mean in zip(averaged, means, strict=True):
                result[i] = mean
            return result
        return self._exchange_of(grads, variables).mean(grads, self._weight())

    def _exchange_of(self, grads, variables):
        key = tuple(map(id, variables))
        if key not in self._exchanges:
            exchange = Exchange(grads, variables, self._bucket_bytes, self._sparse_as_dense)
            self._exchanges[key] = variables, exchange
        exchange = self._exchanges[key][1]
        if self._as_they_come and key not in self._watched:
            self._watched.add(key)
            exchange.watch(self._weight)
        return exchange

    def register(self, grads, variables):
        """Registers a list of variables whose mean may be asked for in a later step only.

        Ranks that have fewer steps must have done so too.

        Args:
            grads: List of gradient tensors.
            variables: The variables they belong to.
        """
        if world.size() > 1 and variables:
            self._exchange_of(grads, variables).take_part()

    def overwriting(self, grads, variables):
        """The gradients, of which those that take a variable's place are the largest of all ranks'.

        They are the ranges of float8 layers, which have seen no larger number than that.
        """
        result = list(grads)
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if world.size() == 1 or not _is_overwritten(variable):
                continue
            count = math.prod(variable.shape)
            if id(variable) not in self._rows:
                self._rows[id(variable)] = StepRows(f"the range {variable.name}", count)
            rows = self._rows[id(variable)](ops.cast(ops.reshape(grad, (count,)), "float32"))
            result[i] = ops.cast(ops.reshape(ops.max(rows, axis=0), variable.shape), grad.dtype)
        return result

    def pause(self):
        """Has backward passes, which may be anyone's between two fits, send nothing."""
        for _, exchange in self._exchanges.values():
            exchange.unwatch()
        self._watched.clear()

    def close(self):
        """Ends its exchanges."""
        for _, exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()
        self._rows.clear()


def averager(optimizer, batch_weight=None, bucket_bytes=None, sparse_as_dense=False):
    """What averages the gradients of an optimizer: an `Averager`, for `hook`.

    Args:
        optimizer: A Keras optimizer.
        batch_weight: `BatchWeight` of the model that is trained. Without one, all ranks that have
            a batch count alike.
        bucket_bytes: Integer, or `None` for a size that is measured.
        sparse_as_dense: Boolean. Whether sparse gradients are exchanged as dense ones.
    """
    accumulates = _accumulates(optimizer)
    made = Averager(
        bucket_bytes,
        _weight_of(batch_weight, accumulates),
        as_they_come=not accumulates,
        sparse_as_dense=sparse_as_dense or accumulates,  # Keras adds up dense ones
    )
    # An optimizer that is dropped gives back what it has leased. Not at exit: all goes then.
    weakref.finalize(optimizer, made.close).atexit = False
    return made


def hook(optimizer, averager):
    """Makes an optimizer average gradients before it applies them.

    The outermost optimizer's `apply` comes before unscaling, clipping, accumulation, weight
    decay and moving averages, so that all of these see the gradients that one process would
    have seen. The hook is an attribute of this instance, set past Keras's attribute tracking.

    Args:
        optimizer: A Keras optimizer.
        averager: Its `Averager`.

    Returns:
        Function that takes the hook off again. It does nothing if the optimizer had one before.
    """
    if is_hooked(optimizer):
        return lambda: None
    replaced = (_update_of if _accumulates(optimizer) else _apply_of)(optimizer, averager)
    uncompiled = backends.require().uncompiled
    hooked = {name: uncompiled(function) for name, function in replaced.items()}
    undo, unmark = patches.replace_all(optimizer, hooked), patches.add(optimizer, _HOOK, averager)

    def unhook():
        averager.pause()
        undo()
        unmark()

    return unhook


def _accumulates(optimizer):
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _weight_of(batch_weight, accumulates):
    if batch_weight is None:
        return None
    if not accumulates:
        return batch_weight.current
    # An update takes several batches, whose weights are gone by then.
    return lambda: PLAIN if batch_weight.is_plain else None


def is_hooked(optimizer):
    """Whether an optimizer averages gradients."""
    return hasattr(optimizer, _HOOK)


def is_applied_by_another():
    """Whether this is within the `apply` of a hooked optimizer, which may call others.

    These get gradients that are averaged already.
    """
    return bool(_applying)


@contextlib.contextmanager
def _applied(optimizer):
    _applying.append(optimizer)
    try:
        yield
    finally:
        _applying.pop()


def exchanged_steps():
    """How many steps of gradients this process has exchanged."""
    return world.engine().core.exchanged_steps()


def _is_overwritten(variable):
    return getattr(variable, "overwrite_with_gradient", False)


def _build(optimizer, variables):
    """Builds an optimizer as its `apply` would, where what makes variables waits for no batch."""
    if not optimizer.built and variables is not None:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(list(variables))


def _variables_of(optimizer, variables):
    if variables is None:
        return keras_optimizer.trainable_variables_of(optimizer)
    return list(variables)


def _apply_of(optimizer, averager):
    original, original_stateless = optimizer.apply, optimizer.stateless_apply
    mean = backends.require().uncompiled(lambda *args: averager.mean(*args), wholly=True)
    are_means = False  # because `stateless_apply` calls `apply`, as that of most optimizers does

    def apply(grads, trainable_variables=None):
        if are_means:
            return original(grads, trainable_variables)
        grads = list(grads)
        _build(optimizer, trainable_variables)
        variables = _variables_of(optimizer, trainable_variables)
        with backends.require().once_there_is_a_batch(), _applied(optimizer):
            return original(mean(grads, variables), trainable_variables)

    def stateless_apply(optimizer_variables, grads, trainable_variables):
        # Before it branches, as `LossScaleOptimizer` does: all ranks must come here.
        nonlocal are_means
        means = mean(list(grads), _variables_of(optimizer, None)) if optimizer.built else grads
        are_means = True
        try:
            with _applied(optimizer):
                return original_stateless(optimizer_variables, means, trainable_variables)
        finally:
            are_means = False

    return {"apply": apply, "stateless_apply": stateless_apply}


def _update_of(optimizer, averager):
    """What an optimizer that accumulates gradients has replaced.

    The mean over ranks of a sum over steps is the sum over steps of the means: one exchange
    when the optimizer updates, between accumulation and clipping, does for all of its steps.
    """
    original_apply, original_clip = optimizer.apply, keras_optimizer.clip_of(optimizer)
    uncompiled = functools.partial(backends.require().uncompiled, wholly=True)
    mean = uncompiled(lambda *args: averager.mean(*args))
    register = uncompiled(averager.register)
    overwriting = uncompiled(averager.overwriting)
    applied = []

    def apply(grads, trainable_variables=None):
        grads = list(grads)
        _build(optimizer, trainable_variables)
        variables = _variables_of(optimizer, trainable_variables)
        pairs = [
            (grad, variable)
            for grad, variable in zip(grads, variables, strict=False)
            if grad is not None and not _is_overwritten(variable)
        ]
        applied[:] = [variable for _, variable in pairs]
        if len(grads) == len(variables):
            register([grad for grad, _ in pairs], list(applied))
            grads = overwriting(grads, variables)
        with backends.require().once_there_is_a_batch(), _applied(optimizer):
            return original_apply(grads, trainable_variables)

    def clip(grads):
        return original_clip(mean(list(grads), list(applied)))

    return {"apply": apply, keras_optimizer.CLIP: clip}
