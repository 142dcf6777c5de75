"""easyddl: synchronous data-parallel training for Keras 3 over MPI, with four added lines.

```python
import easyddl as ddl                                            # 1
x_train, y_train = ddl.split_data(x_train, y_train)              # 2
optimizer = keras.optimizers.SGD(ddl.scale_lr(0.01))             # 3
model.fit(..., callbacks=[ddl.DDLCallback(), *mine,              # 4
                          ddl.DDLGlobalVariablesCallback()])
```

    mpirun -np 8 python train.py
"""

from easyddl.runtime import command_process as _command_process  # the first: it handles Ctrl-C

# isort: split
from typing import TYPE_CHECKING as _TYPE_CHECKING

from easyddl.launch.calls.rank_error import RankError
from easyddl.launch.calls.ranks import Ranks, run
from easyddl.runtime import entry_point as _entry_point
from easyddl.runtime.world import (
    barrier,
    init,
    is_root,
    local_rank,
    local_size,
    node_rank,
    num_nodes,
    rank,
    size,
)

if not _command_process.is_command():
    from easyddl.runtime import job_exit as _job_exit

    _job_exit.install()
    _entry_point.silence_other_ranks()

if not _entry_point.is_light():
    from easyddl import backends as _backends
    from easyddl.callbacks import (
        BackupAndRestore,
        DDLCallback,
        DDLGlobalVariablesCallback,
        LearningRateScheduleCallback,
        LearningRateWarmupCallback,
        ModelCheckpoint,
        ProgressCallback,
        RankZero,
    )
    from easyddl.collectives.lending import collectives_in
    from easyddl.collectives.objects import root_first
    from easyddl.collectives.script import (
        allgather,
        allgather_object,
        alltoall,
        broadcast,
        broadcast_object,
        broadcast_variables,
        reduce_scatter,
    )
    from easyddl.data.split_data import split_data
    from easyddl.hosts import launched_process as _launcher
    from easyddl.layers.sync_batch_normalization import SyncBatchNormalization, sync_batch_norm
    from easyddl.optimizers.distributed_optimizer import DistributedOptimizer
    from easyddl.optimizers.scale_lr import scale_lr
    from easyddl.optimizers.warmup import LearningRateWarmup
    from easyddl.reducer.allreduce import allreduce
    from easyddl.runtime import world as _world
    from easyddl.training.metrics.metrics import register_metric
    from easyddl.training.prediction import predict
    from easyddl.training.state.layer_state import register_layer

    if not _launcher.is_worker() and _backends.find() is not None:
        _backends.find().configure()
        _world.at_start(_backends.pin_gpu_of)
        _world.at_start(_backends.share_cores_of)

__all__ = [
    "BackupAndRestore",
    "DDLCallback",
    "DDLGlobalVariablesCallback",
    "DistributedOptimizer",
    "LearningRateScheduleCallback",
    "LearningRateWarmup",
    "LearningRateWarmupCallback",
    "ModelCheckpoint",
    "ProgressCallback",
    "RankError",
    "RankZero",
    "Ranks",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "collectives_in",
    "init",
    "is_root",
    "local_rank",
    "local_size",
    "node_rank",
    "num_nodes",
    "predict",
    "rank",
    "reduce_scatter",
    "register_layer",
    "register_metric",
    "root_first",
    "run",
    "scale_lr",
    "size",
    "split_data",
    "sync_batch_norm",
]


_FOLDERS = ("callbacks", "layers", "optimizers")


def __dir__() -> list[str]:
    return [*__all__, *_FOLDERS]


if _TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        """Imports Keras and the other public names when the first of them is used."""
        if name == "__version__":
            from easyddl.machine.packages import version_of

            return version_of("easyddl")
        if _entry_point.is_light() and (name in __all__ or name in _FOLDERS):
            _entry_point.load_whole_package()
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
