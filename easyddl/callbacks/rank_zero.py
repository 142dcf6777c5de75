"""Runs a callback on rank 0 only."""

from __future__ import annotations

from typing import Any

import keras

from easyddl.callbacks import hooks
from easyddl.callbacks.own_callback import OwnCallback
from easyddl.compat import patches
from easyddl.runtime import world


class RankZero(OwnCallback, keras.callbacks.Callback):
    """Runs another callback on rank 0 only.

    Use it for callbacks that write files or print. Keras's own `ModelCheckpoint`, `CSVLogger`,
    `TensorBoard` and `BackupAndRestore` need no wrapper if there is a `DDLCallback`. A callback
    that changes the training (the learning rate, `stop_training`) must run on all ranks. A callback
    that calls collectives must run on all ranks too.

    Args:
        callback: A Keras callback instance.

    Raises:
        TypeError: If `callback` is not a Keras callback instance, or must run on all ranks, such as
            `ddl.ModelCheckpoint`.

    Example:
    ```python
    callbacks=[ddl.DDLCallback(), ddl.RankZero(MyReport()), ddl.DDLGlobalVariablesCallback()]
    ```
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        super().__init__()
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(
                "`callback` must be an instance of a Keras callback. "
                f"Received: callback={callback!r}"
            )
        if hooks.runs_on_all_ranks(callback):
            raise TypeError(
                "`callback` already writes on rank 0 only, while the other ranks wait. Pass it to "
                f"`fit` on all ranks, without RankZero. Received: callback={callback!r}"
            )
        self.callback = callback
        self.async_safe = getattr(callback, "async_safe", False)
        if not world.is_root():
            return
        # Use the callback's own methods, so that Keras sees which of them are defaults. Keras skips
        # default hooks, and dispatches steps asynchronously if no hook needs their results.
        for name in set(hooks.NAMES) - {"set_model"}:
            own = hooks.is_overridden(callback, name)
            hook = hooks.announced(callback, name) if own else getattr(callback, name)
            patches.replace(self, name, hook, lasts=True)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if world.is_root():
            hooks.announced(self.callback, "set_model")(model)
