"""Keras's trainer on PyTorch.

The trainer draws a batch, and calls its train function with a list of batches. On the CPU a step
is done when this function returns. On a GPU steps are queued, and may still be computing when the
trainer continues.
"""

import dataclasses

import keras
import torch

from easyddl.backends.base import Backend, StepInProgress
from easyddl.backends.step_meter import StepMeter
from easyddl.backends.torch import dry_run
from easyddl.compat import keras_layer, keras_trainer
from easyddl.runtime import world


class TorchTrainer(Backend):
    """How Keras trains on a `TorchBackend`."""

    def check_model(self, model):
        for path, module in _modules(model):
            _check_module(module, f"model {model.name!r} with {path}")
        wraps = keras_trainer.wraps_in_ddp()  # Keras 3.16 and later
        if wraps and _is_in_group():
            raise ValueError(
                f"Keras {keras.__version__} wraps models in DistributedDataParallel if "
                "torch.distributed has been initialised. Each gradient would be averaged twice, "
                "because easyddl averages it too. Remove torch.distributed.init_process_group, and "
                f"start the ranks with mpirun. Received: model {model.name!r}"
            )

    def allow_fit_without_batch(self, model):
        return keras_trainer.defer_without_batch(model)

    def on_first_batch(self, model, act):
        step = model.train_function

        def first(batches):
            model.train_function = step
            act(keras.tree.map_structure(_spec, batches[0]))
            return step(batches)

        model.train_function = first

    def trace_step(self, model, spec, preserved):
        """Does a dry run of the step with a batch of zeros.

        PyTorch does not trace steps: only a step that runs shows what it reduces.
        """

        def made_up(each):
            # Two samples, because some layers raise an error for one.
            return None if each is None else keras.ops.zeros((2, *each.shape[1:]), each.dtype)

        with dry_run.dry_run(model, preserved):
            model.train_step(keras.tree.map_structure(made_up, spec))

    def begun(self, result):
        if not _uses_gpu():
            return None
        event = torch.cuda.Event()
        event.record()
        return StepInProgress(event.synchronize, event.query)

    def finish(self, model):
        if _uses_gpu():
            torch.cuda.synchronize()


def _check_module(module, place):
    """Raises an error if a module reduces gradients itself, or needs torch.distributed."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"{type(module).__name__} averages gradients over processes, and easyddl would "
            "average them a second time. Train the module that it wraps, without "
            f"torch.distributed, and start the ranks with mpirun. Received: {place}"
        )
    synchronizes = isinstance(module, torch.nn.SyncBatchNorm)
    if synchronizes and world.size() > 1 and not _is_in_group():
        raise ValueError(
            "torch.nn.SyncBatchNorm needs torch.distributed, which easyddl does not use. Without "
            "it, each rank would normalize by its own batch. Use `ddl.SyncBatchNormalization` for "
            "statistics over the batches of all ranks, or torch.nn.BatchNorm1d, 2d or 3d. "
            f"Received: {place}"
        )


def _is_in_group():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _modules(model):
    """Yields all modules of a model, with the path to each."""
    for layer in keras_layer.layers_of(model):
        for name, module in layer.named_modules():
            yield f"{layer.name}.{name}" if name else layer.name, module
    for name, value in vars(model).items():  # modules that neither Keras nor PyTorch tracks
        if isinstance(value, torch.nn.Module):
            yield name, value


@dataclasses.dataclass(frozen=True)
class _Spec:
    """The shape and the dtype that a tensor has in every batch."""

    shape: tuple
    dtype: str


def _spec(x):
    if x is None:
        return None
    return _Spec((None, *x.shape[1:]), keras.backend.standardize_dtype(x.dtype))


def _uses_gpu():
    return keras.ops.zeros(()).is_cuda


class TorchStepMeter(StepMeter):
    """Counts the batches that the trainer passes to its steps."""

    def count(self, batch):
        if not dry_run.is_active():
            super().count(batch)
