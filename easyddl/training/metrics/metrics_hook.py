"""Makes `fit` and `evaluate` report the metrics of all ranks' samples."""

import contextlib

from easyddl.compat import keras_trainer, patches
from easyddl.runtime import world
from easyddl.training.metrics import evaluation, metric_starts, metrics


def hook(model, fit=None):
    """Makes a model report the metrics of all ranks' samples.

    Keras asks for the results of an epoch's training once, after the last step and before the
    validation. It asks for the results of an evaluation once, at the end. No backend calls a
    callback between the last step and the validation. Therefore this hook raises the event of the
    fit that the steps of the epoch have ended.

    Keras resets the metrics at the start of each epoch and of each evaluation. The hook notes their
    states then, because a metric may last beyond an epoch.

    Args:
        model: A compiled Keras model.
        fit: `FitContext` that the hook belongs to; `None` for an evaluation outside of a fit. A
            plain fit of the same model, within a callback, goes on with this one's steps.

    Returns:
        Function that removes the hook.
    """
    original = getattr(model, keras_trainer.RESULTS)

    def results(logs):
        active = evaluation.current(model)
        if active is None and fit is not None:
            fit.tell("after_steps")
            if world.size() == 1:
                return original(logs)
            found = metrics.shared_logs(model, logs, fit.has_samples, fit.note_equal_states)
            return fit.noted_logs(found)
        if active is None or not active.is_shared:
            return original(logs)  # an evaluation by the user, on this rank only
        found = evaluation.shared_logs(active, logs)
        return found if fit is None else fit.noted_logs(found, "val_")

    reset = model.reset_metrics

    def reset_and_note():
        reset()
        metric_starts.note(metrics.leaves(model.metrics))

    undo = contextlib.ExitStack()
    undo.callback(patches.replace(model, keras_trainer.RESULTS, results))
    undo.callback(patches.replace(model, "reset_metrics", reset_and_note))
    return undo.close
