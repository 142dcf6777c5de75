"""A callback that runs on the root only."""

import keras

from easyddl.callbacks import hooks
from easyddl.compat import patches
from easyddl.runtime import world


class RankZero(keras.callbacks.Callback):
    """Runs another callback on rank 0 only.

    For callbacks that write files or print. Keras's own `ModelCheckpoint`, `CSVLogger`,
    `TensorBoard` and `BackupAndRestore` need no wrapper beside a `DDLCallback`. A callback that
    changes training (the learning rate, `stop_training`) must run on all ranks, and so must
    one that calls collectives.

    Args:
        callback: A Keras callback instance.

    Raises:
        TypeError: If `callback` is no Keras callback instance, or one of easyddl's that must run
            on all ranks, as `ddl.ModelCheckpoint` must.

    Example:
    ```python
    callbacks=[ddl.DDLCallback(), ddl.RankZero(MyReport()), ddl.DDLGlobalVariablesCallback()]
    ```
    """

    def __init__(self, callback):
        super().__init__()
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(
                "`callback` must be an instance of a Keras callback. "
                f"Received: callback={callback!r}"
            )
        if hooks.runs_on_all_ranks(callback):
            raise TypeError(
                "`callback` writes on rank 0 only by itself, with the others waiting: pass it to "
                f"`fit` unwrapped, on all ranks. Received: callback={callback!r}"
            )
        self.callback = callback
        self.async_safe = getattr(callback, "async_safe", False)
        if not world.is_root():
            return
        # The callback's own methods, so that Keras sees which of them are defaults: it passes
        # over these, and dispatches steps asynchronously where there is nothing to wait for.
        for name in hooks.NAMES:
            own = hooks.is_overridden(callback, name)
            hook = hooks.announced(callback, name) if own else getattr(callback, name)
            patches.replace(self, name, hook)
