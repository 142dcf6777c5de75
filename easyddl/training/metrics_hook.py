"""Makes `fit` and `evaluate` report the metrics of all ranks' samples."""

from easyddl.compat import keras_trainer
from easyddl.training import evaluation_context, evaluation_metrics, metrics


def hook(model, fit=None):
    """Makes a model report the metrics of all ranks' samples.

    Keras asks for the results of an epoch's training once, after the last step and before the
    validation. It asks for the results of an evaluation once, at the end. No backend calls a
    callback between the last step and the validation. Therefore this hook raises the event of the
    fit that the steps of the epoch have ended.

    Args:
        model: A compiled Keras model.
        fit: `FitContext` that the hook belongs to; `None` for an evaluation outside of a fit. A
            plain fit of the same model, within a callback, goes on with this one's steps.

    Returns:
        Function that removes the hook.
    """
    original = keras_trainer.results_of(model)

    def results(logs):
        evaluation = evaluation_context.current(model)
        if evaluation is None and fit is not None:
            fit.end_steps()
            return fit.noted_logs(metrics.shared_logs(model, logs, fit.has_samples))
        if evaluation is None or not evaluation.is_shared:
            return original(logs)  # an evaluation by the user, on this rank only
        found = evaluation_metrics.shared_logs(model, logs, evaluation.data, evaluation.validation)
        return found if fit is None else fit.noted_logs(found, "val_")

    return keras_trainer.replace_results(model, results)
