"""What `fit` and `evaluate` report, in place of the metrics of this rank's samples."""

from easyddl.compat import keras_trainer
from easyddl.training import evaluation_context, fit_context, metrics


def hook(model):
    """Makes a model report the metrics of all ranks' samples.

    Keras asks for the results of an epoch's training once, after its last step and before the
    validation; and for those of an evaluation once, at its end. No callback is called at the first
    of these points, on any backend. So a fit's event "the steps of the epoch have ended" comes from
    here.

    Args:
        model: A compiled Keras model.

    Returns:
        Function that takes the hook off again.
    """
    original = keras_trainer.results_of(model)

    def results(logs):
        evaluation, fit = evaluation_context.current(model), fit_context.current(model)
        if evaluation is None and fit is not None:
            fit.end_steps()
            return metrics.shared_logs(model, logs, fit.has_samples)
        if evaluation is None or not evaluation.is_shared:
            return original(logs)  # an evaluation of the user's own, on this rank alone
        return metrics.shared_logs(model, logs, has_samples=bool(logs))

    return keras_trainer.replace_results(model, results)
