"""The public callbacks, each in its own file."""

from easyddl import backends as _backends
from easyddl.callbacks.backup_and_restore import BackupAndRestore
from easyddl.callbacks.ddl_callback import DDLCallback
from easyddl.callbacks.global_variables_callback import DDLGlobalVariablesCallback
from easyddl.callbacks.learning_rates import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from easyddl.callbacks.model_checkpoint import ModelCheckpoint
from easyddl.callbacks.progress import ProgressCallback
from easyddl.callbacks.rank_zero import RankZero
from easyddl.checkpoint import model_files as _model_files
from easyddl.compat import check as _check
from easyddl.hosts import launched_process as _launcher
from easyddl.training.fit import model_methods as _model_methods
from easyddl.training.step import optimizer_classes as _optimizer_classes
from easyddl.training.step import unreduced_updates as _unreduced_updates

__all__ = [
    "BackupAndRestore",
    "DDLCallback",
    "DDLGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "ModelCheckpoint",
    "ProgressCallback",
    "RankZero",
]

_check.warn_of_missing()
_model_methods.install()
_model_files.install()
if _launcher.is_rank_of_several() and _backends.find() is not None:
    _optimizer_classes.watch()
    _unreduced_updates.watch()
    _model_files.install_for(_backends.require())
