"""A `BackupAndRestore` for many ranks, which resumes a training bit by bit."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import keras
import numpy as np

from easyddl import backends
from easyddl.callbacks.model_checkpoint import check_save_freq
from easyddl.callbacks.own_callback import OwnCallback
from easyddl.callbacks.preemption import Preemption
from easyddl.checkpoint import atomic_files, saved_random_states
from easyddl.checkpoint.start_claim import StartClaim
from easyddl.collectives import objects, variables
from easyddl.collectives.arrays import as_bytes, contiguous
from easyddl.compat import keras_callback, keras_optimizer, keras_trainer, user_code
from easyddl.hosts import launched_process
from easyddl.optimizers import rescaling
from easyddl.optimizers.scale_lr import factor_of
from easyddl.runtime import console, validators, world
from easyddl.training.fit import fit_context, resumed_epoch
from easyddl.training.fit.callback_order import FitEvents
from easyddl.training.metrics import metric_starts, metrics
from easyddl.training.state import layer_state
from easyddl.training.state.model_state import (
    attached_optimizers,
    is_built,
    untracked_variables,
)

_VARIABLES, _STATE = "variables.npz", "state.json"
_UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, KeyError)


class _OtherModel(ValueError):
    """A backup of another model."""


class BackupAndRestore(OwnCallback, FitEvents, keras.callbacks.Callback):
    """Backs up the state of training, and resumes from it when the script starts again.

    It replaces `keras.callbacks.BackupAndRestore`. After a job has been killed, start it again with
    the same script. It resumes from the last backup and ends with the same weights, bit by bit, as
    an uninterrupted training.

    - Only rank 0 writes, and the other ranks wait for it. If rank 0 cannot write, all ranks raise
      its error. At the start rank 0 reads the backup and broadcasts it.
    - A backup is one directory, which is replaced atomically. The last backup stays loadable,
      however the job is killed.
    - A backup contains the weights, the optimizer's variables, the buffers of PyTorch's modules,
      the epoch, and the state of each rank's random numbers: those of `Dropout` and other layers,
      and of Python and NumPy. It also contains the seed of the order into which `fit` shuffles
      arrays.
    - A backup in the middle of an epoch, made with an integer `save_freq`, also contains the
      metrics. The resumed epoch continues where it was: the batches that it has already seen are
      drawn and skipped.

    Place it after callbacks that change the training at the end of an epoch, such as
    `ReduceLROnPlateau`. Pass it on all ranks, without a wrapper. The model must be built. A backup
    does not contain the state of other callbacks (for example the patience of `EarlyStopping`) or
    the position in datasets and loaders that shuffle themselves. Pass data whose order depends only
    on the epoch, such as arrays.

    **Another number of ranks.** A training of `p` ranks can resume with `q` ranks. Epochs keep
    their numbers. An interrupted epoch continues with the samples that no rank has used. It begins
    again if these are not known; they are known for arrays of `split_data`, for example. A constant
    learning rate is multiplied by `q / p`, because it was chosen for `p` batches per step (see
    `rescale`). The velocity of SGD or RMSprop with momentum is multiplied too. A schedule comes
    from the script, which creates it for `q` ranks. Its counter `optimizer.iterations` is
    multiplied by the new number of steps per epoch divided by the old one, or by `p / q` if these
    numbers are unknown. Each rank continues the random numbers of the rank with its number.
    Additional ranks get new seeds.

    **Preemption.** A scheduler that preempts a job sends SIGTERM, and kills the job after a grace
    time. If any rank receives SIGTERM during `fit`, all ranks stop after the same step, save a
    backup there, whatever `save_freq` is, and raise `SystemExit` with status 143. The same script
    then resumes at that step. This needs a `DDLCallback`; without it, the ranks stop at the next
    backup. A second signal, more than 3 seconds later, ends the process at once. A signal for which
    the script has a handler keeps this handler. The handlers are restored when `fit` ends. If the
    ranks stop in a step in which some ranks have no batch, the last backup is kept.

    Args:
        backup_dir: String or path. A directory for this training only, on a file system that
            rank 0 sees.
        save_freq: `"epoch"`, or an integer: the number of a rank's batches after which to save.
            Steps in which some ranks have no batch are not counted, and nothing is saved in them.
            Nor is it saved after a step that only accumulates gradients: the next update saves.
            Defaults to `"epoch"`.
        double_checkpoint: Boolean. Whether to keep the previous backup too, and to use it if the
            last one cannot be read. Defaults to `False`.
        delete_checkpoint: Boolean. Whether to remove the backup when training has ended. Defaults
            to `True`.
        rescale: The factor of a constant learning rate for `q` ranks after `p`: `"linear"` for
            `q / p`, `"sqrt"` for its square root, `"none"` for 1. Pass the rule that you pass to
            `scale_lr`. Pass `"none"` if the batch of each rank grows as the number of ranks falls.
            Defaults to `"linear"`.
        signals: Tuple of names of signals after which to save a backup and end, such as
            `("SIGTERM", "SIGUSR1")`; `()` for none. Defaults to `("SIGTERM",)`.

    Raises:
        SystemExit: At `fit`, on all ranks, after one of `signals`.
        ValueError: If an argument has an invalid value; at `fit`, if the model is not built, or if
            the backup belongs to another model.
        OSError: At `fit`, on all ranks, if rank 0 cannot read or write.
        RuntimeError: At `fit`, on all ranks, if their arguments differ.

    Example:
    ```python
    callbacks = [
        ddl.DDLCallback(),
        ddl.BackupAndRestore("backup"),
        ddl.DDLGlobalVariablesCallback(),
    ]
    ```
    """

    runs_on_all_ranks = True

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        rescale: Literal["linear", "sqrt", "none"] = "linear",
        signals: Sequence[str] = ("SIGTERM",),
    ) -> None:
        super().__init__()
        atomic_files.require_local("backup_dir", backup_dir)
        if save_freq != "epoch":
            check_save_freq(save_freq)
        self.backup_dir = backup_dir
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self.rescale = validators.one_of("rescale", rescale, ("linear", "sqrt", "none"))
        self.signals = signals
        self._claim = StartClaim(backup_dir)
        self._backups = atomic_files.Generations(
            backup_dir, keep=2 if double_checkpoint else 1, held=self._claim.held
        )
        self._preemption = Preemption(signals, self._save_here, self._steps_here)
        self._begin()

    def _begin(self):
        self._resumed = None  # the backup, until it is completely restored
        self._skipped = 0  # skipped steps of the first epoch
        self._items = None  # the `EpochItems` of the fit, if all ranks know them
        self._starts = []  # what earlier starts have used of this epoch: see `EpochItems.take_rest`
        self._end_rest = self._end_skipping = lambda: None
        self._restored = []  # the values of the variables after these steps
        self._steps_per_epoch = None  # the largest number of any rank, if all ranks know theirs
        self._steps = 0  # steps of this rank in this epoch
        self._common_steps = 0  # the steps of this epoch that all ranks are known to have taken
        self._steps_since_backup = 0
        self._has_trained = False

    @property
    def _fit(self):
        return fit_context.current(self.model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begin()
        self._tell("import")
        built = is_built(self.model)
        world.agree(
            f"BackupAndRestore with save_freq={self.save_freq!r}, rescale={self.rescale!r}, "
            f"delete_checkpoint={bool(self.delete_checkpoint)}, model built: {built}"
        )
        if not built:
            raise ValueError(
                "BackupAndRestore needs the model's variables before `fit`. Begin the model with "
                "`keras.Input(...)`, or call it once on a batch of data. "
                f"Received: model {self.model.name!r}, which is not built"
            )
        self._forget_steps()
        self._exchange_data()
        self._resumed = objects.from_root(self._read, "BackupAndRestore.on_train_begin")
        if self._resumed is not None:
            self._restore_variables()
            keras_callback.set_weights_swapped(self._others(), self._resumed.get("swapped", False))
            self._set_initial_epoch(self._resumed["epoch"])
            self._restore_order()
            self._skip_steps(self._resume_data())
        self._tell("restore")
        self._preemption.begin(self.model)

    def _forget_steps(self):
        """Makes the bits of the next step those of a resumed training, which has no steps before.

        Here and when a training begins, because the model may have been trained before.
        """
        if self._fit is None or self._fit.step is None:
            return
        for each in attached_optimizers(self.model):
            variables.value_of(keras_optimizer.steps_of(each))  # ends the last step
        self._fit.step.forget_weights()

    def _others(self):
        return self._fit.callbacks if self._fit is not None else []

    def _exchange_data(self):
        mine = self._fit and self._fit.first and resumed_epoch.items_of(self._fit)
        found = mine and (mine.layout, mine.items_per_step)
        gathered = objects.allgather_object((self.params.get("steps"), found))
        steps, by_rank = zip(*gathered, strict=True)
        self._steps_per_epoch = None if None in steps else max(steps)
        self._items = mine if all(each == by_rank[0] for each in by_rank) else None

    def _tell(self, event):
        if world.is_root():
            launched_process.tell_supervisor(event)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch, self._steps = epoch, 0
        self._common_steps = 0 if self._resumed is None else self._skipped
        if self._resumed is not None and self._skipped == 0:
            # Restore them here, because DDLGlobalVariablesCallback sets new seeds before.
            self._restore_random_state()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps += self.model.steps_per_execution
        if self._resumed is not None:
            if self._steps >= self._skipped:
                # Other callbacks may have acted on the skipped steps. This is not a collective,
                # because a rank with fewer batches does not reach it.
                for variable, value in zip(self._variables(), self._restored, strict=True):
                    variable.assign(value)
                self._restore_random_state()
            return
        if not self._has_trained:
            self._has_trained = True
            self._tell("first step")
        if self.save_freq != "epoch" and fit_context.all_ranks_have_batches(self.model):
            # Ranks with more batches than others must not count those.
            self._steps_since_backup += self._steps - self._common_steps
            self._common_steps = self._steps
            if self._steps_since_backup >= self.save_freq:
                self._save_here()
        self._preemption.after_step(self.model)

    def after_steps(self, fit: Any) -> None:
        self._end_rest()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._starts = []
        if self._resumed is not None:  # this rank has fewer batches than the skipped ones
            self._end_skipping()
            self._restore_random_state()
        if self.save_freq == "epoch":
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._preemption.end_training()
        if self.delete_checkpoint:
            objects.from_root(self._backups.remove, "BackupAndRestore.on_train_end")

    def _steps_here(self):
        return self._steps if self._resumed is None else None

    def _save_here(self):
        self._save(self._epoch, min(self._steps, self.params.get("steps") or self._steps))

    def _save(self, epoch, batch):
        # This is the only collective of this callback during training.
        self._steps_since_backup = 0
        fit_context.average_state(self.model)
        # A resumed training begins with equal state on all ranks, so this training continues so.
        step = self._fit and self._fit.step
        layer_state.sync_from_root(self.model, (step and step.root_rank) or 0)
        self._forget_steps()
        mine = saved_random_states.capture(self.model)
        mine["batch_states"] = [
            np.asarray(v.numpy()).tolist() for v in layer_state.batch_states(self.model)
        ]
        if batch:
            mine["metrics"] = [np.asarray(v.numpy()).tolist() for v in _metrics_of(self.model)]
            mine["metric_starts"] = [
                [value.tolist() for value in metric_starts.start_of(metric)]
                for metric in metrics.leaves(self.model.metrics)
            ]
        received, ranks = zip(
            *objects.allgather_object((self._preemption.received, mine)), strict=True
        )
        state = {
            "epoch": epoch,
            "batch": batch,
            "size": world.size(),
            "steps_per_epoch": self._steps_per_epoch,
            "data": self._items and (self._items.layout, self._items.items_per_step),
            "starts": self._starts_with(batch),
            "variables": self._layout(),
            "optimizers": self._trained_weights(),
            "order": self._order() and self._order().seed,
            "swapped": keras_callback.weights_are_swapped(self._others()),
            "ranks": ranks,
        }
        objects.from_root(
            lambda: self._backups.add(lambda folder: self._write(folder, state)),
            f"BackupAndRestore in epoch {self._epoch + 1}",
        )
        self._tell("backup")
        position = f"epoch {epoch + 1}, step {batch}" if batch else f"the end of epoch {epoch}"
        self._preemption.end_if_asked(received, f"Saved {position}, to {self.backup_dir}")

    def _starts_with(self, batch):
        if not batch or self._items is None:
            return self._starts
        return [*self._starts, (world.size(), batch * self._items.items_per_step)]

    def _write(self, folder, state):
        arrays = [np.asarray(variable.numpy()) for variable in self._variables()]
        # Save bytes, because NumPy's files do not support bfloat16. The files contain a checksum
        # of each array.
        np.savez(folder / _VARIABLES, *(as_bytes(contiguous(array)) for array in arrays))
        (folder / _STATE).write_text(json.dumps(state))

    def _read(self):
        """Loads the last readable backup, on the root. Returns its state without the variables."""
        self._claim.take()
        self._backups.clean()
        found = self._backups.find()
        for path in found:
            try:
                return self._load(path)
            except _OtherModel as error:
                raise ValueError(str(error)) from None
            except _UNREADABLE as problem:
                if user_code.is_of_handler(problem):
                    raise
                if path == found[-1]:
                    raise OSError(
                        f"The backup {path} cannot be read: {problem}. Remove {self.backup_dir} to "
                        "start from the beginning."
                    ) from problem
                console.say(f"warning: the backup {path} cannot be read: {problem}. The previous "
                            "backup is used.")  # fmt: skip
        return None

    def _load(self, path):
        state = json.loads((path / _STATE).read_text())
        self._build_optimizers(state)
        if state["variables"] != self._layout():
            raise _OtherModel(
                f"The backup {path} belongs to another model or optimizer: its variables have "
                f"other shapes or types. Remove {self.backup_dir} to start from the beginning. "
                f"Received: model {self.model.name!r} with {self._layout()}; in the backup: "
                f"{state['variables']}"
            )
        with np.load(path / _VARIABLES, allow_pickle=False) as arrays:
            for i, variable in enumerate(self._variables()):
                value = np.asarray(variable.numpy())
                variable.assign(arrays[f"arr_{i}"].view(value.dtype).reshape(value.shape))
        return state

    def _layout(self):
        """Returns the shapes and dtypes of the variables. Their names may differ between runs."""
        return [[list(v.shape), str(v.dtype)] for v in self._variables()]

    def _variables(self):
        pairs = zip(attached_optimizers(self.model), self._trained_weights(), strict=True)
        saved = [each for each, numbers in pairs if numbers or each is self.model.optimizer]
        of_optimizers = [v for each in saved for v in each.variables]
        return [*self.model.weights, *of_optimizers, *untracked_variables(self.model)]

    def _trained_weights(self):
        """Returns the numbers of the weights that each optimizer is built for, to build it again.

        The items are `None` for an optimizer that is not built, or also updates other variables.
        """
        numbers = {id(weight): number for number, weight in enumerate(self.model.weights)}
        found = []
        for each in attached_optimizers(self.model):
            own = keras_optimizer.trainable_variables_of(each) if each.built else [None]
            theirs = [numbers.get(id(variable)) for variable in own]
            found.append(None if None in theirs else theirs)
        return found

    def _build_optimizers(self, state):
        """Builds the optimizers for the weights that they were built for in the backup's training.

        A `train_step` of the script's own builds its optimizers only in the first step.
        """
        known = zip(attached_optimizers(self.model), state.get("optimizers", ()), strict=False)
        for each, numbers in known:
            if not each.built and numbers is not None:
                each.build([self.model.weights[number] for number in numbers])
        if "optimizers" not in state and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

    def _restore_variables(self):
        """Broadcasts the variables that the root has loaded, rescaled to the number of ranks."""
        self._build_optimizers(self._resumed)
        variables.broadcast_variables(self._variables())
        before, now = self._resumed["size"], world.size()
        if before == now:
            states = self._resumed["ranks"][world.rank()].get("batch_states", ())
            for variable, state in zip(layer_state.batch_states(self.model), states, strict=False):
                variable.assign(state)
        else:
            factor = factor_of(self.rescale, now) / factor_of(self.rescale, before)
            for each in attached_optimizers(self.model):
                if each.built:
                    rescaling.rescale(each, factor, self._growth_of_steps())

    def _growth_of_steps(self):
        """Returns the ratio of the steps of an epoch to those of the backup's epoch."""
        size, steps = self._resumed["size"], self._resumed["steps_per_epoch"]
        if size == world.size():
            return 1
        now = self._steps_per_epoch
        # An exact fraction: the counter of a schedule would lose a step to rounding.
        return Fraction(now, steps) if now and steps else Fraction(size, world.size())

    def _resume_data(self):
        """Continues in the middle of an epoch. Returns how many steps to skip.

        Another number of ranks takes what is left of the epoch, and skips no step.
        """
        state, steps = self._resumed, self._resumed["batch"]
        if not steps:
            return 0
        starts, before = state.get("starts", []), state.get("data")
        is_known = self._items is not None and before and before[0] == self._items.layout
        is_same = state["size"] == world.size()
        if is_known:
            is_same = is_same and before[1] == self._items.items_per_step
        elif not is_same or starts[:-1]:
            self._say_again()
            return 0
        self._starts = starts[:-1] if is_same else starts
        if self._starts:
            undo = self._items.take_rest(state["epoch"], self._starts)
            if undo is None:
                # The steps of this rank: one more would be the first of the next epoch. A rank
                # without any takes part in the exchange of the first batch, as the others do.
                return max(1, self.params["steps"])
            self._end_rest = undo
            self._fit.at_end.callback(undo)
        return self._whole_executions(steps) if is_same else 0

    def _say_again(self):
        if world.is_root():
            console.say(
                f"epoch {self._resumed['epoch'] + 1} begins again, because it is not known which "
                f"samples the {self._resumed['size']} ranks of the backup have used. It is known "
                'of arrays as `split_data` returned them, and of split_data(..., shuffle="epoch").'
            )

    def _whole_executions(self, steps):
        if steps == self._steps_per_epoch:  # the last execution may be shorter
            return steps
        return steps - steps % self.model.steps_per_execution

    def _order(self):
        """Returns the order of the fit's arrays, if it shuffles arrays; otherwise `None`."""
        return self._fit and self._fit.array_order

    def _restore_order(self):
        order, seed = self._order(), self._resumed.get("order")
        if order is not None and seed is not None:
            order.change(seed=seed, epoch=self._resumed["epoch"])

    def _set_initial_epoch(self, epoch):
        undo = keras_trainer.set_initial_epoch(self.model, epoch)
        if self._fit is not None:  # undo this, because otherwise later fits would begin there too
            self._fit.at_end.callback(undo)

    def _skip_steps(self, steps):
        self._skipped = steps
        if steps == 0:
            return
        self._restored = [np.array(variable.numpy()) for variable in self._variables()]
        backend = backends.require()
        self._end_skipping = backend.skip_steps(self.model, steps)
        if self._fit is None:
            backend.on_first_batch(self.model, self._begin_metrics)
        else:
            # All ranks do this together, because a trace of the step registers its collectives.
            self._fit.exchange_first_batch()
            self._fit.at_end.callback(setattr, self.model, "train_function", None)

    def before_first_batch(self, fit: Any, spec: Any) -> None:
        if self._restored:
            self._begin_metrics(spec)

    def _begin_metrics(self, spec):
        """Builds the metrics, which the skipped steps report, and restores them if possible."""
        self._build_metrics(spec)
        if self._resumed["size"] == world.size():  # otherwise the shards of the ranks have changed
            self._restore_metrics()

    def _build_metrics(self, spec):
        # Keras on TensorFlow builds them in the first step, which follows the skipped steps.
        backend = backends.require()
        if not backend.build(self.model, spec):
            # This is a custom step that runs eagerly. It probably calls the model as usual.
            keras_trainer.build(self.model, backend.symbolic_batch(spec))

    def _restore_metrics(self):
        if self._fit is not None:
            self._fit.has_restored_metrics = True
        mine = self._resumed["ranks"][world.rank()]
        for variable, value in zip(_metrics_of(self.model), mine["metrics"], strict=True):
            variable.assign(np.array(value, variable.dtype))
        # A backup of an earlier version has no starts, which are zeros unless a metric lasts.
        if "metric_starts" in mine:
            leaves = metrics.leaves(self.model.metrics)
            for metric, start in zip(leaves, mine["metric_starts"], strict=True):
                metric_starts.set_start(metric, start)

    def _restore_random_state(self):
        ranks, rank = self._resumed["ranks"], world.rank()
        is_new = rank >= len(ranks)
        mine = saved_random_states.derive_for_rank(ranks[0], rank) if is_new else ranks[rank]
        saved_random_states.restore(self.model, mine)
        self._resumed, self._restored = None, []


def _metrics_of(model):
    return [variable for metric in model.metrics for variable in metric.variables]
