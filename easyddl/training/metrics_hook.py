"""What `fit` and `evaluate` report, in place of the metrics of this rank's samples."""

from easyddl.compat import keras_trainer
from easyddl.training import evaluation_context, metrics


def hook(model, end_steps=None):
    """Makes a model report the metrics of all ranks' samples.

    Keras asks for the results of an epoch's training once, after its last step and before the
    validation; and for those of an evaluation once, at its end. Both come here, on all ranks.

    Args:
        model: A compiled Keras model.
        end_steps: Function that is called after the last step of an epoch's training, if this is
            for a fit. It returns whether this rank's metrics hold samples.

    Returns:
        Function that takes the hook off again.
    """
    original = keras_trainer.results_of(model)

    def results(logs):
        evaluation = evaluation_context.current(model)
        if evaluation is None and end_steps is not None:
            return metrics.shared_logs(model, logs, has_samples=end_steps())
        if evaluation is None or not evaluation.is_shared:
            return original(logs)  # an evaluation of the user's own, on this rank alone
        return metrics.shared_logs(model, logs, has_samples=bool(logs))

    return keras_trainer.replace_results(model, results)
