"""The public callbacks: one per file."""

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
from easyddl.compat import check as _check
from easyddl.training import model_methods as _model_methods

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
