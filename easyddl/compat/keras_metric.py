"""Metrics."""

from easyddl.compat.names import several

NAMES = several(
    "keras.Metric",
    dict.fromkeys(
        ("_metrics", "_variables"), "metrics that contain other metrics cannot be merged"
    ),
    is_set=True,
)


def metrics_in(metric):
    """Returns the metrics that a metric holds as attributes."""
    return metric._metrics


def own_variables_of(metric):
    """Returns the variables of a metric, without those of metrics that it holds."""
    return metric._variables
