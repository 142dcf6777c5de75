"""The callback that makes the ranks start alike."""

import keras
import numpy as np

from easyddl import backends
from easyddl.callbacks import order
from easyddl.checkpoint import random_states
from easyddl.collectives import arrays, objects, variables
from easyddl.compat import keras_callback, keras_trainer
from easyddl.runtime import console, world
from easyddl.training import compiled_step, fit_context, model_state, replica_check


class DDLGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the root's weights before the first step. Must be the last callback.

    It comes last so that what other callbacks load at the beginning of training, such as a
    backup, is broadcast too. The optimizer's variables are broadcast with the weights. Each
    rank then draws random numbers of its own (for dropout, say), which depend on the root's
    seeds and on the rank alone.

    It makes all ranks stop if any of them sets `model.stop_training`: after the step that follows
    the one in which a callback has set it, or at the end of the epoch.

    Args:
        root_rank: Integer. The rank whose variables all get.

    Raises:
        TypeError: At `fit`, if the class was passed instead of an instance.
        ValueError: At `fit`, if it is not the last callback, or not the only one; or if
            `root_rank` is no rank.
        RuntimeError: On all ranks, if their models differ.
    """

    async_safe = True  # see `on_train_batch_end`

    def __init__(self, root_rank=0):
        super().__init__()
        self.root_rank = root_rank

    def set_model(self, model=None):
        order.require_instance(self, "DDLGlobalVariablesCallback")
        super().set_model(model)
        fit = fit_context.current(model)
        if fit is not None:
            order.check(fit.callbacks, last=DDLGlobalVariablesCallback)

    def on_train_begin(self, logs=None):
        arrays.check_root(self.root_rank)
        self._share_initial_epoch()
        fit = fit_context.current(self.model)
        if fit is not None and fit.step is not None:
            fit.step.root_rank = self.root_rank
        # Keras may have built it on the ranks that have batches, and not on others.
        if not all(objects.allgather_object(_is_built(self.model))):
            _require(fit, self.model).at_first_batch(self._build_and_share)
            return
        self._share_variables()
        if fit is not None and world.size() > 1:
            fit.at_first_batch(lambda spec: None)

    def _share_initial_epoch(self):
        # BackupAndRestore, which acts on the root, may have set where training goes on.
        mine = keras_trainer.initial_epoch(self.model)
        epoch = objects.broadcast_object(mine, self.root_rank)
        keras_trainer.set_initial_epoch(self.model, epoch)

    def _build_and_share(self, spec):
        if backends.require().build(self.model, spec):
            self._share_variables()
        else:
            fit = fit_context.current(self.model)
            _require_batches_on_all_ranks(fit)
            fit.after_first_step(self._share_late)

    def _share_late(self):
        """Where only the first step could make the variables, and has changed them already."""
        if replica_check.differences(self.model) and world.is_root():
            console.say(
                "warning: each rank took the first step from its own initial weights, since the "
                "model's own train_step makes them and runs eagerly. Now all have the root's. Call "
                "keras.utils.set_random_seed on all ranks before the model is made, or call the "
                "model once on a batch before fit()."
            )
        self._share_variables()

    def _share_variables(self):
        optimizer = self.model.optimizer
        # A step of the user's own may use others, and never this one.
        is_steps = backends.require().builds_in_step(self.model)
        if optimizer is not None and not optimizer.built and not is_steps:
            optimizer.build(self.model.trainable_variables)
        variables.broadcast_variables(model_state.initial_variables(self.model), self.root_rank)
        self._share_seeds()

    def _share_seeds(self):
        fit, parted = fit_context.current(self.model), random_states.Parted(self.root_rank)
        if fit is not None:
            fit.at_success(fit.at_end.enter_context(parted).join)
        pairs = [generator.state for generator in random_states.seed_generators(self.model)]
        variables.broadcast_variables(pairs, self.root_rank)
        for pair in pairs:
            seed, counter = np.asarray(pair.numpy()).tolist()
            # Counted from the root, so that the root's own numbers stay what they were.
            distance = (world.rank() - self.root_rank) % world.size()
            pair.assign(np.array([(seed + distance) % 2**32, counter], pair.dtype))

    def on_train_batch_end(self, batch, logs=None):
        # Not by `self.model`, which has all of JAX's variables take their values.
        model = keras_callback.model_of(self)
        fit = fit_context.current(model)
        if fit is None or fit.attendance is None or world.size() == 1:
            return
        # Where Keras does not wait for its callbacks, the fit sees to it after the next step.
        if fit.is_here():
            backends.require().finish(model)
            model.stop_training = fit.attendance.after_step(model.stop_training)

    def on_epoch_end(self, epoch, logs=None):
        if world.size() > 1:
            stop = np.array(bool(self.model.stop_training))
            self.model.stop_training = bool(arrays.allreduce(stop, op="max"))


def _require_batches_on_all_ranks(fit):
    without = [r for r, has in enumerate(objects.allgather_object(fit.has_batches)) if not has]
    if without:
        raise RuntimeError(
            "The model is not built, and its own train_step, which runs eagerly, makes its "
            "variables by the first batch, which some ranks do not have. Call the model once on a "
            f"batch before fit(), or give all ranks data. Received: ranks {without} without a batch"
        )


def _is_built(model):
    # A model without `call` never is, though its layers are once a step has been traced.
    step = compiled_step.of(model)
    return model_state.is_built(model) or (step is not None and step.is_traced)


def _require(fit, model):
    if fit is None:
        raise RuntimeError(
            f"{type(model).__name__}.fit() does not call keras.Model.fit(), and the model is not "
            "built: begin it with keras.Input(...), or call it once on a batch of data, so that "
            "its variables can be given to all ranks."
        )
    return fit
