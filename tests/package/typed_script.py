"""A script as a user writes it, for mypy. It is checked and not run."""

import keras
import numpy as np

import easyddl as ddl


@ddl.register_metric(merge="max")
class LargestError(keras.metrics.Metric):
    pass


@ddl.register_layer(merge={"total": "sum"})
class RunningSum(keras.Layer):
    pass


def train(x: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    x, y = ddl.split_data(x, y, shuffle="epoch", batch_size=16)
    rate: float = ddl.scale_lr(0.01, rule="sqrt")
    schedule = ddl.LearningRateWarmup(rate, warmup_epochs=0.5, steps_per_epoch=100)
    model = ddl.sync_batch_norm(keras.Sequential([keras.layers.BatchNormalization()]))
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(schedule)), "mse")
    callbacks = [
        ddl.DDLCallback(uneven="truncate", check_replicas=False, scalar_losses="mean"),
        ddl.LearningRateScheduleCallback(rate, lambda epoch: 0.5**epoch, staircase=False),
        ddl.LearningRateWarmupCallback(0.1, warmup_epochs=2),
        ddl.ModelCheckpoint("best.keras", save_best_only=True, save_freq=100),
        ddl.BackupAndRestore("backup", rescale="none"),
        ddl.ProgressCallback(),
        ddl.RankZero(keras.callbacks.CSVLogger("log.csv")),
        ddl.DDLGlobalVariablesCallback(root_rank=0),
    ]
    history: dict[str, list[float]] = model.fit(x, y, callbacks=callbacks).history
    return history


def on_ranks(x: np.ndarray, y: np.ndarray) -> list[dict[str, list[float]]]:
    env = {"KERAS_BACKEND": "jax"}
    with ddl.Ranks(np=4, env=env, cpus=range(4), start_timeout=30) as ranks:
        ranks.run(train, (x, y), timeout=60)
    return ddl.run(train, args=(x, y), np=4, hosts="h1:2,h2:2")


def misuse() -> None:
    """Each line is an error. mypy also reports a `type: ignore` that is not needed."""
    ddl.DDLCallback(uneven="wait")  # type: ignore[arg-type]
    ddl.ModelCheckpoint()  # type: ignore[call-arg]
    ddl.register_metric(merge="median")  # type: ignore[call-overload]
    ddl.split_data([1], remainder=True)  # type: ignore[arg-type]
    ddl.Ranks(hosts=["h1"])  # type: ignore[arg-type]
    text: str = ddl.scale_lr(0.1)  # type: ignore[assignment]
    print(text)
