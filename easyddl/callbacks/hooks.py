"""Replaces the hooks of a callback: the methods that Keras calls."""

import functools

import keras
import numpy as np

from easyddl.compat import patches
from easyddl.runtime import world

_KERAS_NAMES = dir(keras.callbacks.Callback)

NAMES = ("set_params", "set_model", *(name for name in _KERAS_NAMES if name.startswith("on_")))

_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in (
        "ModelCheckpoint",
        "CSVLogger",
        "TensorBoard",
        "BackupAndRestore",
        "RemoteMonitor",
        "OrbaxCheckpoint",  # of Keras 3.13 and later
    )
    if hasattr(keras.callbacks, name)
)


def do_nothing(*args, **kwargs):
    """Replaces a hook on the ranks on which a callback is muted."""


def runs_on_all_ranks(callback):
    """Returns whether a callback calls collectives and therefore must not be muted on any rank."""
    return getattr(callback, "runs_on_all_ranks", False)


def mute(callback):
    """Makes a callback's hooks do nothing.

    Returns:
        Function without arguments that restores the hooks.
    """
    return patches.replace_all(callback, dict.fromkeys(NAMES, do_nothing))


def plain_attributes(callback):
    """Returns the public attributes of a callback that are numbers, texts or `None`, as a dict."""
    kinds = (bool, int, float, str, np.generic, type(None))
    return {
        name: value
        for name, value in vars(callback).items()
        if not name.startswith("_") and isinstance(value, kinds)
    }


def changed_attributes(callback, before):
    """Returns the name of a callback's class, and its plain attributes that have changed.

    What has not changed is an argument, such as the name of a file, which may differ by rank.

    Args:
        callback: A Keras callback.
        before: Dict. Its earlier `plain_attributes`.
    """
    now = plain_attributes(callback)
    changed = {k: v for k, v in now.items() if k not in before or before[k] != v}
    return type(callback).__name__, changed


def announce(callback):
    """Makes a callback's hooks report their activity to the ranks that wait for this rank.

    Returns:
        Function without arguments that restores the hooks.
    """
    own = [name for name in NAMES if is_overridden(callback, name)]
    return patches.replace_all(callback, {name: announced(callback, name) for name in own})


def is_overridden(callback, name):
    """Returns whether a callback's class overrides Keras's default of a hook."""
    return getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)


def announced(callback, name):
    """Wraps a hook so that it is reported to waiting ranks while it runs."""
    hook, text = getattr(callback, name), f"{type(callback).__name__}.{name}"

    @functools.wraps(hook)
    def wrapped(*args, **kwargs):
        with world.activity(text):
            return hook(*args, **kwargs)

    return wrapped


def act_on_root(fit):
    """Makes the callbacks of a fit that write files or print act on the root only."""
    for callback in fit.callbacks:
        if isinstance(callback, _WRITERS) and not runs_on_all_ranks(callback):
            change = announce if world.is_root() else mute
            fit.at_end.callback(change(callback))
            fit.root_callbacks.append((callback, plain_attributes(callback)))
        elif _prints(callback) and not world.is_root():
            fit.at_end.callback(patches.replace(callback, "verbose", 0))


def _prints(callback):
    """Returns whether a callback is one of Keras's that print what they decide, on all ranks."""
    return type(callback).__module__.startswith("keras.") and bool(vars(callback).get("verbose"))


def mute_writers(fit):
    """Mutes the callbacks that write files: those of Keras, and those that run on all ranks.

    They may be within a `RankZero`.
    """
    for callback in fit.callbacks:
        inner = getattr(callback, "callback", callback)
        if isinstance(inner, _WRITERS) or runs_on_all_ranks(callback):
            fit.at_end.callback(mute(callback))
