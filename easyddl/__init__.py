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

from easyddl.runtime import startup_logs as _quiet  # noqa: F401 - must be imported before any framework

# isort: split
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
from easyddl.collectives.arrays import allgather, alltoall, broadcast, reduce_scatter
from easyddl.collectives.objects import allgather_object, broadcast_object, root_first
from easyddl.collectives.variables import broadcast_variables
from easyddl.data.split_data import split_data
from easyddl.layers.sync_batch_normalization import SyncBatchNormalization, sync_batch_norm
from easyddl.optimizers.distributed_optimizer import DistributedOptimizer
from easyddl.optimizers.scale_lr import scale_lr
from easyddl.optimizers.warmup import LearningRateWarmup
from easyddl.reducer.allreduce import allreduce
from easyddl.runtime import job_exit as _job_exit
from easyddl.runtime import launcher as _launcher
from easyddl.runtime import world as _world
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
from easyddl.training import model_methods as _model_methods
from easyddl.training.layer_state import register_layer
from easyddl.training.metrics import register_metric

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
    "RankZero",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "init",
    "is_root",
    "local_rank",
    "local_size",
    "node_rank",
    "num_nodes",
    "rank",
    "reduce_scatter",
    "register_layer",
    "register_metric",
    "root_first",
    "scale_lr",
    "size",
    "split_data",
    "sync_batch_norm",
]


def __dir__() -> list[str]:
    return [*__all__, "callbacks", "layers", "optimizers"]


_job_exit.install()
_model_methods.install()
if not _launcher.is_worker() and _backends.find() is not None:
    _backends.find().configure()
    _world.at_start(_backends.pin_gpu_of)
