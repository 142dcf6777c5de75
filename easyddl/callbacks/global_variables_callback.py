"""The callback that broadcasts the initial variables."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from easyddl import backends
from easyddl.callbacks import hooks, instances
from easyddl.callbacks.own_callback import OwnCallback
from easyddl.checkpoint import saved_random_states
from easyddl.collectives import arguments, objects, variables
from easyddl.compat import keras_callback, keras_trainer
from easyddl.runtime import notices, world
from easyddl.steps import context
from easyddl.training.agreement import epoch_logs, replicas
from easyddl.training.fit import callback_order, fit_context
from easyddl.training.fit.fit_context import FitContext
from easyddl.training.state import adapted_layers, model_state
from easyddl.training.step import compiled_step


class DDLGlobalVariablesCallback(OwnCallback, callback_order.Last, keras.callbacks.Callback):
    """Broadcasts the root's weights before the first step. Pass it as the last callback.

    As the last callback it also broadcasts variables that other callbacks load at the beginning of
    training, for example from a backup. `fit` moves it to the end of the list if other callbacks
    follow, such as those that KerasTuner appends. It broadcasts the weights, the optimizer's
    variables, and the buffers of PyTorch's modules. From then on each rank draws its own random
    numbers, for example for dropout. These depend only on the root's seeds and on the number of the
    rank.

    It stops all ranks if any of them sets `model.stop_training`. They stop one step after the step
    in which a callback has set it, or at the end of the epoch.

    Args:
        root_rank: Integer. The rank whose variables are broadcast. Defaults to 0.

    Raises:
        TypeError: At `fit`, if the class was passed instead of an instance.
        ValueError: At `fit`, if it is passed more than once, or if `root_rank` is not the number of
            a rank.
        RuntimeError: On all ranks, if their models differ.

    Example:
    ```python
    model.fit(x, y, callbacks=[ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()])
    ```
    """

    async_safe = True  # see `on_train_batch_end`

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._builds_late = self._broadcasts_late = False  # once there is a batch, or a step

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        fit = fit_context.current(model)
        if fit is not None:
            instances.require_single(fit.callbacks, DDLGlobalVariablesCallback)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        arguments.check_root(self.root_rank)
        self._broadcast_initial_epoch()
        fit = fit_context.current(self.model)
        if fit is not None and fit.step is not None:
            fit.step.root_rank = self.root_rank
        # Keras may have built the model only on the ranks that have batches.
        if not all(objects.allgather_object(_is_built(self.model))):
            self._builds_late = True
            _require(fit, self.model).exchange_first_batch()
            return
        self._broadcast_variables()
        if fit is not None and world.size() > 1:
            fit.exchange_first_batch()

    def _broadcast_initial_epoch(self):
        # Keras's BackupAndRestore, which acts on the root only, may have set the initial epoch.
        mine = keras_trainer.initial_epoch(self.model)
        epoch = objects.broadcast_object(mine, self.root_rank)
        keras_trainer.set_initial_epoch(self.model, epoch)

    def before_first_batch(self, fit: Any, spec: Any) -> None:
        if not self._builds_late:
            return
        self._builds_late = False
        if backends.require().build(self.model, spec):
            self._broadcast_variables()
        else:
            _require_batches_on_all_ranks(fit.ranks_without_batch)
            self._broadcasts_late = True

    def after_first_step(self, fit: Any) -> None:
        """Broadcasts the variables that only the first step could create."""
        if not self._broadcasts_late:
            return
        self._broadcasts_late = False
        if not replicas.are_equal(self.model):
            notices.tell(
                "warning: each rank took the first step from its own initial weights, because a "
                "step that runs eagerly creates them. Now all ranks have the root's weights. Call "
                "keras.utils.set_random_seed on all ranks before you create the model, or call the "
                "model once on a batch before fit()."
            )
        self._broadcast_variables()

    def _broadcast_variables(self):
        optimizer = self.model.optimizer
        # A custom train_step may use other optimizers and never this one.
        is_steps = backends.require().builds_in_step(self.model)
        if optimizer is not None and not optimizer.built and not is_steps:
            optimizer.build(self.model.trainable_variables)
        found = model_state.initial_variables(self.model)
        found += model_state.caches_of_equal_shape(self.model)
        variables.broadcast_variables(found, self.root_rank)
        if adapted_layers.derive_again(self.model):
            compiled_step.drop_test_constants(self.model)
        self._derive_seeds()

    def _derive_seeds(self):
        self._separate_random_states(fit_context.current(self.model))
        pairs = [generator.state for generator in saved_random_states.seed_generators(self.model)]
        variables.broadcast_variables(pairs, self.root_rank)
        for pair in pairs:
            seed, counter = np.asarray(pair.numpy()).tolist()
            # Relative to the root, so that the root's own random numbers do not change.
            distance = (world.rank() - self.root_rank) % world.size()
            pair.assign(np.array([(seed + distance) % 2**32, counter], pair.dtype))

    def _separate_random_states(self, fit):
        # In a fit within a callback of another fit, the ranks' states already differ.
        if any(each.random_states is not None for each in context.active(FitContext)):
            return
        states = saved_random_states.PerRankStates(self.root_rank)
        if fit is not None:
            fit.random_states = states

    def after_fit(self, fit: Any) -> None:
        if fit.random_states is not None:
            fit.random_states.sync_from_root()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # `self.model` would make Keras copy JAX's state into all variables.
        model = keras_callback.model_of(self)
        fit = fit_context.current(model)
        if fit is None or fit.join is None or world.size() == 1:
            return
        # If Keras does not wait for its callbacks, the fit context does this after the next step.
        if fit.is_training_thread():
            backends.require().finish(model)
            model.stop_training = fit.join.ends_after_step(model.stop_training)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if world.size() == 1:
            return
        fit = fit_context.current(self.model)
        on_root = [] if fit is None else fit.root_callbacks
        mine = (
            bool(self.model.stop_training),
            epoch_logs.numbers_in(logs or {}),
            epoch_logs.monitored_by([] if fit is None else fit.callbacks),
            [hooks.changed_attributes(*pair) for pair in on_root] if world.is_root() else None,
        )
        stops, numbers, monitored, attributes = zip(*objects.allgather_object(mine), strict=True)
        self.model.stop_training = any(stops)
        # Ranks that train alone have other results anyway, and another warning names the cause.
        if fit is None or fit.step is not None or not fit.has_trained_alone():
            epoch_logs.warn_of_differences(numbers, monitored, epoch)
        # A script may read these on any rank, such as `best` of a ModelCheckpoint.
        for (callback, _), (name, values) in zip(on_root, attributes[0], strict=False):
            if not world.is_root() and type(callback).__name__ == name:
                vars(callback).update(values)


def _require_batches_on_all_ranks(without):
    if without:
        raise RuntimeError(
            "The model is not built. Its step runs eagerly and creates its variables from the "
            "first batch, which some ranks do not have. Call the model once on a batch before "
            f"fit(), or give all ranks data. Received: ranks {without} without a batch"
        )


def _is_built(model):
    # A model without `call` never counts as built, but its layers are built once a step has been
    # traced.
    step = compiled_step.of(model)
    return model_state.is_built(model) or (step is not None and step.is_traced)


def _require(fit, model):
    if fit is None:
        raise RuntimeError(
            f"{type(model).__name__}.fit() does not call keras.Model.fit(), and the model is not "
            "built. Begin it with keras.Input(...), or call it once on a batch of data, so that "
            "its variables can be broadcast."
        )
    return fit
