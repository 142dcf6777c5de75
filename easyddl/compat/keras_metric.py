"""Metrics."""

from easyddl.compat.names import Name

NAMES = (
    Name(
        "keras.Metric",
        "_metrics",
        "metrics that hold others cannot be merged by these",
        is_set=True,
    ),
    Name(
        "keras.Metric",
        "_variables",
        "metrics that hold others cannot be merged by these",
        is_set=True,
    ),
)


def metrics_in(metric):
    """The metrics that a metric holds as attributes."""
    return metric._metrics


def own_variables_of(metric):
    """The variables of a metric itself, without those of metrics that it holds."""
    return metric._variables
