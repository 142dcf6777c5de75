"""The callback that shows the progress of all ranks."""

from __future__ import annotations

import numbers
import threading
import time
from typing import Any

import keras

from easyddl.callbacks import hooks
from easyddl.callbacks.own_callback import OwnCallback
from easyddl.callbacks.throughput import RankThroughput, ThroughputMeter, combine
from easyddl.collectives import objects
from easyddl.runtime import console, world
from easyddl.training.fit import fit_context

_REFRESH = 0.1  # seconds


class ProgressCallback(OwnCallback, keras.callbacks.Callback):
    """Shows one progress bar for all ranks, on rank 0, instead of Keras's.

    At the end of an epoch the bar shows:

    - Samples per second: the samples of all ranks, divided by the time from the beginning of the
      epoch to the end of its last step. Validation is not included. Within an epoch the bar shows
      rank 0's own samples times the number of ranks.
    - The slowest rank, and the ratio of its busy time to the mean over the ranks. All ranks take
      the same time for an epoch, because they wait for each other at every step. A rank is *busy*
      while it does not wait for averaged gradients: from the arrival of the averaged gradients of
      one step until it has computed its last gradient of the next step. In this time it updates
      its weights, runs callbacks, reads its data and computes. A ratio of 1.00 means that no rank
      delays the others. The first step of a fit, which compiles, is left out. This entry needs a
      `DDLCallback`.
    - The loss and the metrics. With a `DDLCallback` they cover the samples of all ranks. Within an
      epoch they cover rank 0's own samples.

    The bar appears in notebooks, and if standard error leads to a terminal, directly or through a
    pipe to `mpirun`. Otherwise the callback prints a line for each epoch to standard error. The
    argument `verbose` of `fit` has no effect.

    The ranks gather three numbers at the end of an epoch, and none within it. Pass this callback on
    all ranks, between `DDLCallback` and `DDLGlobalVariablesCallback`, and not in a `RankZero`.

    Raises:
        TypeError: At `fit`, if the class was passed instead of an instance.
        RuntimeError: On all ranks, if only some ranks pass it; or if the model's own `fit` does
            not call `keras.Model.fit`.

    Example:
    ```python
    model.fit(x, y, callbacks=[ddl.DDLCallback(), ddl.ProgressCallback(),
                               ddl.DDLGlobalVariablesCallback()])
    ```
    """

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._fit: fit_context.FitContext | None = None
        self._throughput: ThroughputMeter  # from `set_model` on
        self._display: _Bar | _Lines | None = None
        self._lock = threading.Lock()  # steps may end in several threads

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._fit = fit_context.current(model)
        if self._fit is None:
            return  # evaluate or predict
        self._throughput = ThroughputMeter(self._fit.meter, self._fit.join)
        for callback in self._fit.callbacks:
            if isinstance(callback, keras.callbacks.ProgbarLogger):
                self._fit.at_end.callback(hooks.mute(callback))
        if world.is_root():
            self._display = _Bar() if _has_viewer() else _Lines()
            self._fit.at_end.callback(self._display.close)

    def set_params(self, params: dict[str, Any] | None) -> None:
        # The dict is shared with Keras's own progress bar, the last of the callbacks.
        if params and self._fit is not None:
            params["verbose"] = 0
        super().set_params(params)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._fit is None:
            raise RuntimeError(
                f"{type(self.model).__name__}.fit() does not call keras.Model.fit(), where "
                "easyddl measures the steps. Call it there, or leave out ProgressCallback."
            )
        if world.size() > 1:
            world.agree("fit with a ddl.ProgressCallback(), which all ranks must pass, or none")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._display is not None:
            epochs = self.params.get("epochs")
            title = f"epoch {epoch + 1}/{epochs}" if epochs else f"epoch {epoch + 1}"
            self._display.open(title, self.params.get("steps"))
        self._throughput.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        with self._lock:
            self._throughput.end_step()
            if self._display is not None:
                self._display.advance(batch + 1, lambda: self._words_so_far(logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        own = self._throughput.now()
        ranks = objects.allgather_object(tuple(own)) if world.size() > 1 else [own]
        if self._display is not None:
            self._display.end(_words(combine([RankThroughput(*each) for each in ranks]), logs))

    def _words_so_far(self, logs):
        own = self._throughput.now()
        every = own._replace(samples=own.samples * world.size(), busy=None)
        return _words(combine([every]), logs)


def _words(figures, logs):
    """Formats the throughput and the logs of an epoch as one line."""
    words = [f"{figures.rate:,.{0 if figures.rate >= 100 else 1}f} samples/s"]
    if figures.slowest is not None:
        words.append(f"slowest rank {figures.slowest}: {figures.share:.2f}x the mean")
    for name, value in (logs or {}).items():
        shown = f"{value:.4g}" if isinstance(value, numbers.Real) else value
        words.append(f"{name}={shown}")
    return ", ".join(words)


def _bar_class():
    from tqdm.auto import tqdm

    return tqdm


def _has_viewer():
    """Returns whether someone can watch a moving bar: in a notebook or in a terminal."""
    in_notebook = any(kind.__module__ == "tqdm.notebook" for kind in _bar_class().__mro__)
    return in_notebook or console.is_watched()


class _Bar:
    """Shows each epoch as a bar, which stays on the screen."""

    def __init__(self):
        self._bar = None
        self._shown = 0.0

    def open(self, title, steps):
        """Begins an epoch of `steps` steps, or of an unknown number if `steps` is `None`."""
        self.close()
        self._bar = _bar_class()(total=steps, desc=title, unit="step")

    def advance(self, steps, words):
        """Shows the number of completed steps, and the text that `words()` returns."""
        if time.monotonic() - self._shown >= _REFRESH:
            self._shown = time.monotonic()
            self._bar.set_postfix_str(words(), refresh=False)
        self._bar.update(max(0, steps - self._bar.n))

    def end(self, words):
        """Ends the epoch and shows its final text."""
        self._bar.set_postfix_str(words)
        self.close()

    def close(self):
        """Closes the bar, if there is one. The epoch may be incomplete."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None


class _Lines:
    """Prints a line at the end of each epoch."""

    def open(self, title, steps):
        self._title = title

    def advance(self, steps, words):
        pass

    def end(self, words):
        console.say(f"{self._title}: {words}")

    def close(self):
        pass
