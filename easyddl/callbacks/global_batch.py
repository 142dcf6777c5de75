"""Warns if an update takes more samples than the linear scaling rule supports."""

from easyddl.runtime import notices, world
from easyddl.training.step import momentum_correction

LIMIT = 8192  # samples per update, up to which the rule held for Goyal et al., 2017


def warn(fit):
    """Warns once on the root, after the first step of a fit, if an update exceeds the limit.

    Args:
        fit: The `FitContext`.
    """
    if world.size() == 1 or not world.is_root():
        return
    batch = -(-fit.meter.samples // max(1, fit.meter.steps))
    # A model with a custom train_step may be compiled without an optimizer.
    optimizer = fit.model.optimizer
    inner = optimizer and momentum_correction.innermost(optimizer)
    times = getattr(inner, "gradient_accumulation_steps", None) or 1
    total = batch * world.size() * times
    if total <= LIMIT:
        return
    steps = f" in each of the {times} steps that an update accumulates" if times > 1 else ""
    notices.tell_once(
        warn,
        f"warning: an update takes {total} samples ({batch} on each of the {world.size()} ranks"
        f"{steps}). With a learning rate scaled by the number of ranks, larger batches reach the "
        f"accuracy of small ones up to about {LIMIT} samples (Goyal et al., 2017). Let the rate "
        "rise over the first epochs (ddl.LearningRateWarmup). Compare the accuracy with that of a "
        "smaller batch. If it is lower, use a smaller batch_size or fewer ranks.",
    )
