"""The callbacks of easyddl."""

from easyddl.callbacks.ddl_callback import DDLCallback
from easyddl.callbacks.global_variables_callback import DDLGlobalVariablesCallback
from easyddl.callbacks.learning_rates import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from easyddl.callbacks.progress import ProgressCallback
from easyddl.callbacks.rank_zero import RankZero

__all__ = [
    "DDLCallback",
    "DDLGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "ProgressCallback",
    "RankZero",
]
