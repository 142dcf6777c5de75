"""A warning where an update takes more samples than learning rates are known to scale to."""

from easyddl.optimizers import momentum_correction
from easyddl.runtime import notices, world

LIMIT = 8192  # images, up to which Goyal et al., 2017, found the linear rule to hold


def watch(fit):
    """Has the first step of a fit tell, on the root, if an update takes more samples than that.

    Args:
        fit: `Fit`.
    """
    if world.size() == 1 or not world.is_root():
        return
    meter = fit.meter
    fit.after_first_step(
        lambda: _warn(-(-meter.samples // max(1, meter.steps)), fit.model.optimizer)
    )


def _warn(batch, optimizer):
    # A model may be compiled without one, for a step of its own.
    inner = optimizer and momentum_correction.innermost(optimizer)
    times = getattr(inner, "gradient_accumulation_steps", None) or 1
    total = batch * world.size() * times
    if total <= LIMIT:
        return
    steps = f" in each of the {times} steps that an update gathers" if times > 1 else ""
    notices.tell_once(
        watch,
        f"warning: an update takes {total} samples ({batch} on each of the {world.size()} ranks"
        f"{steps}). A learning rate scaled with the number of ranks has been found to do as well "
        f"as a small batch up to about {LIMIT} (Goyal et al., 2017). Let the rate rise over the "
        "first epochs (ddl.LearningRateWarmup), compare the accuracy with that of a smaller batch, "
        "and if it is lower take a smaller batch_size or fewer ranks.",
    )
