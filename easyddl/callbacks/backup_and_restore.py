"""A `BackupAndRestore` for many ranks, after which training goes on as if never stopped."""

import json
import zipfile
from fractions import Fraction

import keras
import numpy as np

from easyddl import backends
from easyddl.callbacks.model_checkpoint import check_save_freq
from easyddl.checkpoint import atomic_files, random_states
from easyddl.collectives import objects, variables
from easyddl.collectives.arrays import as_bytes, contiguous
from easyddl.compat import keras_trainer
from easyddl.optimizers import rescaling
from easyddl.optimizers.scale_lr import factor_of
from easyddl.runtime import console, world
from easyddl.training import fit_context, moving_statistics
from easyddl.training.model_state import is_built

_VARIABLES, _STATE = "variables.npz", "state.json"
_UNREADABLE = (OSError, json.JSONDecodeError, zipfile.BadZipFile, KeyError)


class BackupAndRestore(keras.callbacks.Callback):
    """Backs up the state of training, and goes on from there when the script starts again.

    It takes the place of `keras.callbacks.BackupAndRestore`. Start a job again that was killed,
    with the same script: it goes on with the last backup, and ends with the same weights, bit by
    bit, as if it had never been killed.

    - Rank 0 writes alone, and the others wait for it. If it cannot write, all ranks raise its
      error. At the start it reads alone, and gives all ranks what it has read.
    - A backup is one directory that appears whole or not at all. Whatever kills the job, the last
      one stays loadable.
    - It holds the weights, the optimizer's variables, the epoch, and where each rank stands in its
      random numbers: those of `Dropout` and other layers, and of Python and NumPy.
    - One that was made in the middle of an epoch, with an integer `save_freq`, holds the metrics
      too. The epoch then goes on where it was: the batches that it has seen are drawn and passed
      over.

    Place it after callbacks that change training at the end of an epoch, such as
    `ReduceLROnPlateau`, and pass it to all ranks, unwrapped. The model must be built. What other
    callbacks remember (the patience of `EarlyStopping`, say) is not backed up, nor is the order
    that Keras shuffles arrays into: pass `shuffle=False`, or data whose order follows from the
    epoch, where the same bits matter.

    **Another number of ranks.** A training of `p` ranks can go on with `q`. An epoch begins where
    it would have begun, and one that was under way goes on after as many samples. A plain learning
    rate is multiplied by `q / p`, since it was chosen for `p` batches a step (see `rescale`), and
    the velocity of SGD or RMSprop with momentum with it. A schedule is the one that the script now
    makes, for `q` ranks; `optimizer.iterations`, which it counts by, is multiplied by how many
    times more steps an epoch has: `p / q`, where the data do not tell. Each rank takes up the
    random numbers of the rank of its number; further ones get seeds of their own.

    Args:
        backup_dir: String or path. A directory for this training alone, on a file system that
            rank 0 sees.
        save_freq: `"epoch"`, or an integer: after how many batches of a rank to save. Steps in
            which some ranks have no batch are not counted, and nothing is saved then.
        double_checkpoint: Boolean. Whether to keep the backup before the last one as well, and
            take it if the last one cannot be read.
        delete_checkpoint: Boolean. Whether to remove the backup when training has ended.
        rescale: What to multiply a plain learning rate by for `q` ranks after `p`: `"linear"` for
            `q / p`, `"sqrt"` for its square root, `"none"` for 1. Pass what `scale_lr` got; or
            `"none"` if each rank's batch becomes larger as the ranks become fewer.

    Raises:
        ValueError: If an argument is none of these; at `fit`, if the model is not built, or the
            backup is one of another model.
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
        backup_dir,
        save_freq="epoch",
        double_checkpoint=False,
        delete_checkpoint=True,
        rescale="linear",
    ):
        super().__init__()
        atomic_files.require_local("backup_dir", backup_dir)
        if save_freq != "epoch":
            check_save_freq(save_freq)
        if rescale not in ("linear", "sqrt", "none"):
            raise ValueError(
                f'`rescale` must be "linear", "sqrt" or "none". Received: rescale={rescale!r}'
            )
        self.backup_dir = backup_dir
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self.rescale = rescale
        self._backups = atomic_files.Generations(backup_dir, keep=2 if double_checkpoint else 1)
        self._begin()

    def _begin(self):
        self._resumed = None  # the backup, until all of it has been restored
        self._passed_over = 0  # steps of the first epoch
        self._steps = 0  # in this epoch, on this rank
        self._steps_since_backup = 0

    def on_train_begin(self, logs=None):
        self._begin()
        built = is_built(self.model)
        world.agree(
            f"BackupAndRestore with save_freq={self.save_freq!r}, rescale={self.rescale!r}, "
            f"delete_checkpoint={bool(self.delete_checkpoint)}, model built: {built}"
        )
        if not built:
            raise ValueError(
                "BackupAndRestore must know the model's variables before `fit`. Begin the model "
                "with `keras.Input(...)`, or call it once on a batch of data. "
                f"Received: model {self.model.name!r}, which is not built"
            )
        self._resumed = objects.from_root(self._read, "BackupAndRestore.on_train_begin")
        if self._resumed is not None:
            self._restore_variables()
            self._set_initial_epoch(self._resumed["epoch"])
            self._pass_over_steps(int(self._resumed["batch"] * self._growth_of_steps()))

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._steps = epoch, 0
        if self._resumed is not None and self._passed_over == 0:
            # Not before: DDLGlobalVariablesCallback gives new seeds when training begins.
            self._restore_random_state()

    def on_train_batch_end(self, batch, logs=None):
        self._steps += self.model.steps_per_execution
        if self._resumed is not None:
            if self._steps >= self._passed_over:
                # Once more: other callbacks have seen steps that were none.
                objects.from_root(self._read, "BackupAndRestore.on_train_batch_end")
                self._restore_variables()
                self._restore_random_state()
            return
        if not fit_context.everyone_trains(self.model):
            return
        self._steps_since_backup += self.model.steps_per_execution
        if self.save_freq != "epoch" and self._steps_since_backup >= self.save_freq:
            self._save(self._epoch, min(self._steps, self.params.get("steps") or self._steps))

    def on_epoch_end(self, epoch, logs=None):
        if self.save_freq == "epoch":
            self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        if self.delete_checkpoint:
            objects.from_root(self._backups.remove, "BackupAndRestore.on_train_end")

    def _save(self, epoch, batch):
        # All ranks come together here, and nowhere else while they train.
        self._steps_since_backup = 0
        moving_statistics.average_moving_statistics(self.model)
        mine = random_states.capture(self.model)
        if batch:
            mine["metrics"] = [np.asarray(v.numpy()).tolist() for v in _metrics_of(self.model)]
        state = {
            "epoch": epoch,
            "batch": batch,
            "size": world.size(),
            "steps_per_epoch": self.params.get("steps"),
            "variables": self._layout(),
            "ranks": objects.allgather_object(mine),
        }
        objects.from_root(
            lambda: self._backups.add(lambda folder: self._write(folder, state)),
            f"BackupAndRestore in epoch {self._epoch + 1}",
        )

    def _write(self, folder, state):
        arrays = [np.asarray(variable.numpy()) for variable in self._variables()]
        # As bytes: NumPy's files know no bfloat16. They hold a checksum of each array.
        np.savez(folder / _VARIABLES, *(as_bytes(contiguous(array)) for array in arrays))
        (folder / _STATE).write_text(json.dumps(state))

    def _read(self):
        """Loads the last backup that can be read, on the root; returns all but the variables."""
        self._backups.clean()
        found = self._backups.find()
        for path in found:
            try:
                return self._load(path)
            except _UNREADABLE as problem:
                if path == found[-1]:
                    raise OSError(
                        f"The backup {path} cannot be read: {problem}. Remove {self.backup_dir} to "
                        "begin anew."
                    ) from problem
                console.say(f"warning: the backup {path} cannot be read: {problem}. The one before "
                            "it is taken.")  # fmt: skip
        return None

    def _load(self, path):
        state = json.loads((path / _STATE).read_text())
        self._build_optimizer()
        if state["variables"] != self._layout():
            raise ValueError(
                f"The backup {path} is one of another model or optimizer: its variables have other "
                f"shapes or types. Remove {self.backup_dir} to begin anew. Received: model "
                f"{self.model.name!r} with {self._layout()}; in the backup: {state['variables']}"
            )
        with np.load(path / _VARIABLES, allow_pickle=False) as arrays:
            for i, variable in enumerate(self._variables()):
                value = np.asarray(variable.numpy())
                variable.assign(arrays[f"arr_{i}"].view(value.dtype).reshape(value.shape))
        return state

    def _layout(self):
        """The shapes and types of what is backed up; names would differ from run to run."""
        return [[list(v.shape), str(v.dtype)] for v in self._variables()]

    def _variables(self):
        return [*self.model.weights, *self.model.optimizer.variables]

    def _build_optimizer(self):
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

    def _restore_variables(self):
        """Gives all ranks what the root has loaded, fitted to their number."""
        self._build_optimizer()
        variables.broadcast_variables(self._variables())
        before, now = self._resumed["size"], world.size()
        if before != now:
            factor = factor_of(self.rescale, now) / factor_of(self.rescale, before)
            rescaling.rescale(self.model.optimizer, factor, self._growth_of_steps())

    def _growth_of_steps(self):
        """How many times more steps an epoch has than that of the backup."""
        size, steps = self._resumed["size"], self._resumed["steps_per_epoch"]
        if size == world.size():
            return 1
        now = self.params.get("steps")
        # Exact: a step that is lost to rounding would be taken twice.
        return Fraction(now, steps) if now and steps else Fraction(size, world.size())

    def _set_initial_epoch(self, epoch):
        undo = keras_trainer.set_initial_epoch(self.model, epoch)
        fit = fit_context.current(self.model)
        if fit is not None:  # else a later fit would begin there too
            fit.at_end.callback(undo)

    def _pass_over_steps(self, steps):
        self._passed_over = steps
        if steps > 0:
            door, fit = backends.require(), fit_context.current(self.model)
            if fit is not None:
                fit.at_end.callback(setattr, self.model, "train_function", None)
            door.skip_steps(self.model, steps)
            door.on_first_batch(self.model, self._restore_metrics)

    def _restore_metrics(self, spec):
        if self._resumed["size"] != world.size():
            return  # they begin anew: each rank has had samples of other ranks
        fit = fit_context.current(self.model)
        if fit is not None:
            fit.has_restored_metrics = True
        keras_trainer.build(self.model, backends.require().symbolic_batch(spec))
        values = self._resumed["ranks"][world.rank()]["metrics"]
        for variable, value in zip(_metrics_of(self.model), values, strict=True):
            variable.assign(np.array(value, variable.dtype))

    def _restore_random_state(self):
        ranks, rank = self._resumed["ranks"], world.rank()
        is_new = rank >= len(ranks)
        mine = random_states.of_another_rank(ranks[0], rank) if is_new else ranks[rank]
        random_states.restore(self.model, mine)
        self._resumed = None


def _metrics_of(model):
    return [variable for metric in model.metrics for variable in metric.variables]
