"""Hooks an optimizer so that it averages gradients over all ranks before it applies them."""

import contextlib
import dataclasses
import functools
import itertools
import weakref

import keras

from easyddl import backends
from easyddl.compat import keras_optimizer, patches, user_code
from easyddl.reducer.gradient_reducer import GradientReducer, is_overwritten
from easyddl.runtime import settled_errors, world
from easyddl.steps import context
from easyddl.steps.batch_weight import UNWEIGHTED
from easyddl.training.step.inner_optimizers import HOOKED, inner_optimizers

_UPDATE = "the update of an optimizer"  # for messages
_numbers = itertools.count(1)  # of the updates outside of fits that this rank has begun
_HOOK = "_easyddl_reducer"
_KEPT = "_easyddl_kept_hook"  # what removes the hook of `keep_hook`, and its settings


def create_reducer(optimizer, options, batch_weight=None, at_first_update=None):
    """Creates the `GradientReducer` of an optimizer, for `hook`.

    Args:
        optimizer: A Keras optimizer.
        options: `ReductionOptions`.
        batch_weight: The `BatchWeight` of the trained model. With `None`, it is that of the fit in
            whose step the optimizer is used. In a loop of the script, all ranks that have a batch
            have the same weight.
        at_first_update: Function of a list of variables, or `None`: see `GradientReducer`. The list
            contains the optimizer's variables, too.
    """
    by_update = reduces_by_update(optimizer)
    if getattr(optimizer, "gradient_accumulation_steps", None):
        # Keras accumulates dense gradients.
        options = dataclasses.replace(options, sparse_as_dense=True)
    owner = weakref.ref(optimizer)  # the reducer must not keep the optimizer alive
    reducer = GradientReducer(
        options,
        _weight_of(batch_weight, by_update),
        as_ready=not by_update,
        at_first=at_first_update and (lambda v: at_first_update([*v, *owner().variables])),
    )
    # Frees the engine's memory when the optimizer is garbage-collected. At the exit of the
    # process this is not needed.
    weakref.finalize(optimizer, reducer.close).atexit = False
    return reducer


def hook(optimizer, reducer, lasts=False):
    """Makes an optimizer average gradients before it applies them.

    The hook replaces `apply` of the outermost optimizer, which runs before unscaling, clipping,
    accumulation, weight decay and moving averages. All of these therefore receive the gradients
    that one process would compute. The hook is an attribute of the instance, and bypasses Keras's
    attribute tracking.

    Args:
        optimizer: A Keras optimizer.
        reducer: The optimizer's `GradientReducer`.
        lasts: Boolean. Whether the hook outlasts a fit.

    Returns:
        Function that removes the hook. An optimizer that was already hooked keeps its hook.
    """
    move_outwards(optimizer)
    if is_hooked(optimizer):
        kept = reducer_of(optimizer)
        # The gradients of a fit belong to other registrations than those of the script's own loop.
        if context.running_step() is None:
            kept.pause()
        return kept.pause
    by_update = reduces_by_update(optimizer)
    replacements_for = _update_replacements if by_update else _apply_replacements
    replacements = replacements_for(optimizer, reducer)
    uncompiled = backends.require().uncompiled
    hooked = {name: uncompiled(_by_all_ranks(each)) for name, each in replacements.items()}
    for method in hooked.values():
        vars(method)[HOOKED] = optimizer
    undo = patches.replace_all(optimizer, hooked, lasts)
    unmark = patches.add(optimizer, _HOOK, reducer, lasts)

    def unhook():
        reducer.pause()
        undo()
        unmark()

    return unhook


def _by_all_ranks(update):
    """Wraps a method of an optimizer that all ranks call together, each in its owner thread."""

    @functools.wraps(update)
    @world.on_all_ranks(_UPDATE)
    def call(*args, **kwargs):
        world.require_owner(_UPDATE)
        if context.active():  # ranks have different numbers of updates; the next fit broadcasts
            return update(*args, **kwargs)
        number = next(_numbers)
        try:
            return update(*args, **kwargs)
        except BaseException:
            world.note_failed_update(number)
            raise

    return call


def keep_hook(optimizer, options, at_first_update=None):
    """Hooks an optimizer for good, for a script that trains without a `DDLCallback`.

    Args:
        optimizer: A Keras optimizer.
        options: `ReductionOptions`.
        at_first_update: Function or `None`: see `create_reducer`.
    """
    if is_hooked(optimizer):
        return
    settings = {"options": options, "at_first_update": at_first_update}
    unhook = hook(optimizer, create_reducer(optimizer, **settings), lasts=True)
    patches.add(optimizer, _KEPT, (unhook, settings), lasts=True)


def move_outwards(optimizer):
    """Moves the kept hook of an inner optimizer to the optimizer that holds it.

    The outer optimizer may skip updates, as a `LossScaleOptimizer` does after an overflow on this
    rank. The ranks must have averaged the gradients before. `Model.compile` puts such an optimizer
    around one that is hooked already.

    Args:
        optimizer: The outer Keras optimizer.

    Returns:
        Boolean: whether the outer optimizer now has a hook.
    """
    kept = [vars(inner)[_KEPT] for inner in inner_optimizers(optimizer) if _KEPT in vars(inner)]
    if not kept or is_hooked(optimizer):
        return False
    for inner in inner_optimizers(optimizer):
        vars(inner).pop(_KEPT, None)
    for unhook, _ in kept:
        unhook()
    keep_hook(optimizer, **kept[0][1])
    return True


def _ending_reductions(reducer, function):
    """Wraps a method of Keras so that its errors end the reductions of an optimizer on all ranks.

    All ranks may have the same error, so the script's other collectives can go on.

    Args:
        reducer: The optimizer's `GradientReducer`.
        function: The method.
    """

    def give_up(error):
        reducer.give_up(error)
        settled_errors.settled(error)

    return settled_errors.giving_up(function, give_up)


def reduces_by_update(optimizer):
    """Returns whether one reduction is enough for all steps whose gradients are accumulated."""
    if is_hooked(optimizer):
        return not reducer_of(optimizer).as_ready
    accumulates = bool(getattr(optimizer, "gradient_accumulation_steps", None))
    return accumulates and not _has_own_apply(optimizer)


def _has_own_apply(optimizer):
    """Returns whether the script has replaced `apply` of an optimizer, what calls it, or its parts.

    It may transform the gradients there, for example to a norm. Then each step needs the gradients
    of all ranks, also if they are accumulated after that.
    """
    names = ("apply", "apply_gradients", "stateless_apply", *keras_optimizer.ACCUMULATING)
    return not all(user_code.is_of_keras(getattr(optimizer, name)) for name in names)


def _weight_of(batch_weight, by_update):
    def weight():
        step = context.running_step()
        found = batch_weight or (step and step.weight)
        if found is None:
            return None
        if not by_update:
            return found.current()
        # An update uses several batches. The weights of the earlier ones are no longer known.
        return UNWEIGHTED if found.is_unweighted else None

    return weight


def reducer_of(optimizer, otherwise=None):
    """Returns the `GradientReducer` of a hooked optimizer."""
    return getattr(optimizer, _HOOK, otherwise)


def is_hooked(optimizer):
    """Returns whether an optimizer averages gradients."""
    return hasattr(optimizer, _HOOK)


class Update(context.Scope):
    """An update whose gradients are averaged, while it runs.

    It may call other methods of the optimizer, and other optimizers, with the same gradients.
    """


def _build(optimizer, variables, reducer):
    """Builds an optimizer as its `apply` does, before `once_there_is_a_batch` is entered."""
    if not optimizer.built and variables is not None:
        with keras.name_scope(optimizer.name, caller=optimizer):
            _ending_reductions(reducer, optimizer.build)(list(variables))


def _variables_of(optimizer, variables):
    if variables is None:
        return keras_optimizer.trainable_variables_of(optimizer)
    return list(variables)


def _apply_replacements(optimizer, reducer):
    """Returns the replacements of methods for an optimizer that updates at every step.

    Args:
        optimizer: A Keras optimizer.
        reducer: The optimizer's `GradientReducer`.

    Returns:
        Dict of functions, by the names of the methods that they replace.
    """
    original = _ending_reductions(reducer, optimizer.apply)
    original_stateless = _ending_reductions(reducer, optimizer.stateless_apply)
    original_gradients = _ending_reductions(reducer, optimizer.apply_gradients)
    mean = backends.require().uncompiled(reducer.mean, wholly=True)
    # True while the other methods call `apply`, as they do in most optimizers.
    are_averaged = False

    @contextlib.contextmanager
    def averaged():
        nonlocal are_averaged
        are_averaged = True
        try:
            with Update():
                yield
        finally:
            are_averaged = False

    def apply(grads, trainable_variables=None):
        if are_averaged:
            return original(grads, trainable_variables)
        grads = list(grads)
        _build(optimizer, trainable_variables, reducer)
        variables = _variables_of(optimizer, trainable_variables)
        with backends.require().once_there_is_a_batch(), Update():
            return original(mean(grads, variables), trainable_variables)

    def stateless_apply(optimizer_variables, grads, trainable_variables):
        # Averages before the original branches, as that of `LossScaleOptimizer` does, because
        # all ranks must take part.
        means = mean(list(grads), _variables_of(optimizer, None)) if optimizer.built else grads
        with averaged():
            return original_stateless(optimizer_variables, means, trainable_variables)

    def apply_gradients(grads_and_vars, *args, **kwargs):
        grads, variables = zip(*grads_and_vars, strict=True)
        _build(optimizer, variables, reducer)
        with backends.require().once_there_is_a_batch(), averaged():
            means = mean(list(grads), list(variables))
            return original_gradients(list(zip(means, variables, strict=True)), *args, **kwargs)

    replacements = {"apply": apply, "stateless_apply": stateless_apply}
    # A subclass's own may skip the update, or apply an inner optimizer. Keras's calls `apply`.
    if type(optimizer).apply_gradients is not keras.optimizers.Optimizer.apply_gradients:
        replacements["apply_gradients"] = apply_gradients
    return replacements


def _update_replacements(optimizer, reducer):
    """Returns the replacements of methods for an optimizer that accumulates gradients.

    The mean over ranks of a sum over steps equals the sum over steps of the means. Therefore one
    reduction per update, between accumulation and clipping, is enough for all steps of the update.

    Args:
        optimizer: A Keras optimizer.
        reducer: The optimizer's `GradientReducer`.

    Returns:
        Dict of functions, by the names of the methods that they replace.
    """
    original_apply = _ending_reductions(reducer, optimizer.apply)
    original_clip = getattr(optimizer, keras_optimizer.CLIP)
    uncompiled = functools.partial(backends.require().uncompiled, wholly=True)
    mean = uncompiled(lambda *args: reducer.mean(*args))
    register = uncompiled(reducer.register)
    overwriting = uncompiled(reducer.overwriting)
    mean_of_update = uncompiled(functools.partial(_mean_of_update, optimizer, reducer))
    applied = []
    means = []  # of an update in an eager step

    def apply(grads, trainable_variables=None):
        grads = list(grads)
        _build(optimizer, trainable_variables, reducer)
        variables = _variables_of(optimizer, trainable_variables)
        # An optimizer that wraps another one has no accumulators.
        has_accumulators = bool(keras_optimizer.accumulators_of(optimizer))
        is_eager = has_accumulators and world.size() > 1 and backends.require().is_eager()
        pairs = [
            (grad, variable)
            for grad, variable in zip(grads, variables, strict=False)
            if (grad is not None or is_eager) and not is_overwritten(variable)
        ]
        applied[:] = [variable for _, variable in pairs]
        means.clear()
        if len(grads) == len(variables):
            register([grad for grad, _ in pairs], list(applied))
            grads = overwriting(grads, variables)
            if is_eager:
                grads, found = mean_of_update(grads, variables)
                means.extend(found)
        with backends.require().once_there_is_a_batch(), Update():
            return original_apply(grads, trainable_variables)

    def clip(grads):
        if means:
            averaged = list(means)
            means.clear()
            return original_clip(averaged)
        return original_clip(mean(list(grads), list(applied)))

    return {"apply": apply, keras_optimizer.CLIP: clip}


def _mean_of_update(optimizer, reducer, grads, variables):
    """Averages what an optimizer that accumulates gradients applies, before it filters gradients.

    An optimizer applies what it has accumulated for the variables that have a gradient in the step
    of the update. On several ranks, this is each variable of which any rank has a gradient then.
    In a graph the ranks cannot know this.

    Args:
        optimizer: A Keras optimizer that accumulates gradients.
        reducer: The optimizer's `GradientReducer`.
        grads: List of gradients; an item is `None` if this rank has no gradient of a variable.
        variables: List of the variables of these gradients.

    Returns:
        Pair of a list of gradients, which are not `None` where the variable is due, and the list of
        the means that the optimizer must apply to those variables. The latter is empty in a step
        that only accumulates.
    """
    backend = backends.require()
    built_for = set(map(id, keras_optimizer.trainable_variables_of(optimizer)))
    if (
        any(grad is not None and backend.is_symbolic(grad) for grad in grads)
        or not built_for.issuperset(map(id, variables))  # Keras raises an error
        or not keras_optimizer.is_update_next(optimizer)
    ):
        return grads, []
    averaged = [i for i, variable in enumerate(variables) if not is_overwritten(variable)]
    mine, own = [grads[i] for i in averaged], [variables[i] for i in averaged]
    sums = keras_optimizer.accumulated_means(optimizer, mine, own)
    found = reducer.mean(sums, own, [grad is not None for grad in mine])
    result = list(grads)
    for i, mean in zip(averaged, found, strict=True):
        result[i] = mean
    return result, [mean for mean in found if mean is not None]
