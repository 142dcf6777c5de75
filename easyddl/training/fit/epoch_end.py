"""The end of an epoch's steps on all ranks, some of which may have had fewer batches."""

from easyddl import backends
from easyddl.collectives import objects
from easyddl.runtime import world
from easyddl.training.state import layer_state, model_state, moving_statistics


def end_steps(fit, uneven, epoch):
    """Ends the steps of an epoch on all ranks, before the validation. Collective.

    Args:
        fit: `FitContext`.
        uneven: The argument of `DDLCallback`.
        epoch: Integer, from 0.

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
        _sync_unequal_ranks(model, objects.allgather_object(mine), uneven, epoch)
    moving_statistics.average_moving_statistics(model, weight=fit.batches)
    layer_state.sync_from_root(model, fit.step.root_rank or 0)
    model.stop_training = state.stop


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
            f"{epoch + 1} of model.fit() before the others. Give all ranks the same number of "
            'batches, or pass DDLCallback(uneven="join") to train on all batches. Received: '
            'uneven="error"'
        )
    if short:
        model_state.sync_from_rank(model, root_rank=steps.index(most))
