"""The end of an epoch and of its steps on all ranks, some of which may have had fewer batches."""

from easyddl import backends
from easyddl.collectives import objects, variables
from easyddl.runtime import console, settled_errors, world
from easyddl.training.agreement import epoch_logs
from easyddl.training.metrics import evaluation
from easyddl.training.state import layer_state, model_state

_ADVICE = (
    'Give all ranks the same number of batches, or pass DDLCallback(uneven="join") to train on all '
    'batches. Received: uneven="error"'
)


def end_steps(fit, uneven):
    """Ends the steps of an epoch on all ranks, before the validation. Collective.

    Args:
        fit: `FitContext`.
        uneven: The argument of `DDLCallback`.

    Raises:
        RuntimeError: If `uneven` is "error" and ranks took different numbers of steps. On all
            ranks.
    """
    model = fit.model
    backends.require().finish(model)
    fit.step_ends.finish()
    fit.join_first_batch()
    state = fit.join.join_others(stop=model.stop_training)
    if state.uneven and uneven == "truncate":
        fit.data.end_epoch()
    # Steps that only accumulate gradients reduce nothing and carry no control word, so the ranks
    # compare their numbers of steps here.
    accumulated = model_state.accumulated_steps(model)
    if state.uneven or accumulated is not None:
        mine = -state.missed if accumulated is None else accumulated
        _sync_unequal_ranks(model, objects.allgather_object(mine), uneven, fit.epoch)
    fit.average_state()
    layer_state.sync_from_root(model, fit.step.root_rank or 0)
    model.stop_training = state.stop


def require_equal_steps(steps):
    """Raises the error of `uneven="error"` before the first step, if the ranks know their steps.

    Args:
        steps: List of integers, by rank; `None` where a rank does not know it.
    """
    if None not in steps and len(set(steps)) > 1:
        raise settled_errors.settled(
            RuntimeError(
                f"The ranks have different numbers of batches: {console.by_rank(steps)}. {_ADVICE}"
            )
        )


def _sync_unequal_ranks(model, steps, uneven, epoch):
    """Synchronizes ranks that have taken different numbers of steps.

    Args:
        model: The Keras model in training.
        steps: List of the steps of each rank, or of how many it has missed as negative numbers.
        uneven: The argument of `DDLCallback`.
        epoch: Integer, from 0.
    """
    most = max(steps)
    short = [str(rank) for rank, each in enumerate(steps) if each < most]
    if short and uneven == "error":
        raise RuntimeError(
            f"Ranks {', '.join(short)} of {world.size()} ran out of batches in epoch "
            f"{epoch + 1} of model.fit() before the others. {_ADVICE}"
        )
    if short:
        shared = model_state.shared_variables(model)  # `average_own_state` averages the others
        variables.broadcast_variables(shared, root_rank=steps.index(most))


def end_epoch(fit, logs, has_validated):
    """Gives all ranks the same results at the end of an epoch. Collective.

    Args:
        fit: `FitContext`.
        logs: Dict of the epoch's logs, which is changed.
        has_validated: Boolean. Whether this rank has evaluated the model after the steps.
    """
    own = fit.own_logs(logs)
    # Ranks without validation data receive the results of the others. The model's own `evaluate`
    # may not call Keras's.
    has_own_results = any(key.startswith("val_") for key in own)
    if not has_validated and not has_own_results and fit.any_rank_validates(fit.epoch):
        fit.model.reset_metrics()  # as the evaluation of the other ranks does
        nothing = evaluation.EvaluationContext(fit.model, validation=fit.first.validation)
        found = evaluation.shared_logs(nothing, {})
        logs.update({f"val_{key}": value for key, value in found.items()})
        fit.noted_logs(found, "val_")
    epoch_logs.share(logs, own)
