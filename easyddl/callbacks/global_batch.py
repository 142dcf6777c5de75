"""A warning where an update takes more samples than learning rates are known to scale to."""

import threading

from easyddl import console, momentum, world

LIMIT = 8192  # images, up to which Goyal et al., 2017, found the linear rule to hold

_has_warned = False


def watch(callback, fit):
    """Has the first step of a fit tell, on the root, if an update takes more samples than that.

    The callback's hook is replaced on the instance, and put back by that step: one in the class
    would take the time of a call at every step.

    Args:
        callback: A Keras callback of the fit.
        fit: `Fit`.
    """
    if world.size() == 1 or not world.is_root() or _has_warned:
        return
    meter, name = fit.meter, "on_train_batch_end"
    before, is_own = getattr(callback, name), name in vars(callback)
    lock = threading.Lock()  # the hook may be called for several steps at once

    def first(batch, logs=None):
        if restore():
            _warn(-(-meter.samples // max(1, meter.steps)), fit.model.optimizer)
        before(batch, logs)

    def restore():
        with lock:
            is_there = vars(callback).get(name) is first
            if is_there:
                object.__delattr__(callback, name)
                if is_own:
                    object.__setattr__(callback, name, before)
            return is_there

    object.__setattr__(callback, name, first)
    fit.at_end.callback(restore)


def _warn(batch, optimizer):
    global _has_warned
    times = momentum.innermost(optimizer).gradient_accumulation_steps or 1
    total = batch * world.size() * times
    if total <= LIMIT or _has_warned:
        return
    _has_warned = True
    steps = f" in each of the {times} steps that an update gathers" if times > 1 else ""
    console.say(
        f"warning: an update takes {total} samples ({batch} on each of the {world.size()} ranks"
        f"{steps}). A learning rate scaled with the number of ranks has been found to do as well "
        f"as a small batch up to about {LIMIT} (Goyal et al., 2017). Let the rate rise over the "
        "first epochs (ddl.LearningRateWarmup), compare the accuracy with that of a smaller batch, "
        "and if it is lower take a smaller batch_size or fewer ranks."
    )
