"""The contract of a Keras backend, `Backend`; `submitter.py` has its contract with the engine."""

import abc
import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from easyddl.backends.step_meter import StepMeter
from easyddl.backends.submitter import Submitter
from easyddl.backends.untracked_state import UntrackedState
from easyddl.compat import keras_data, keras_trainer
from easyddl.hosts import launched_process
from easyddl.runtime import affinity


class StepInProgress(NamedTuple):
    """A step that Keras's trainer has started.

    Attributes:
        wait: Function without arguments that returns when the step is done.
        is_done: Function without arguments that returns whether the step is done.
    """

    wait: Callable[[], Any]
    is_done: Callable[[], bool]


class Backend(abc.ABC):
    """A Keras backend. Only the package of a backend imports its framework.

    The structure of a batch (`spec`) is nested like the batch. Each leaf has the `shape` and the
    `dtype` that this array has in every batch. A leaf is `None` if the batches contain `None` in
    its place, for example without sample weights.

    Attributes:
        framework: String. The name of the framework, for messages.
        submitter: The class of its submitters.
        step_meter: The class of its counters of training steps.
        outlives_references: Boolean. Whether a compiled function may still run when nothing refers
            to it anymore.
    """

    framework: str
    submitter: type[Submitter]
    step_meter: type[StepMeter]
    outlives_references = False

    # Devices.

    def configure(self):
        """Divides the cores and GPUs of the host among its ranks, unless the user has done so.

        Called at import, because a framework takes all cores and GPUs at its first operation.
        """
        if launched_process.size() is None:
            return
        try:
            if launched_process.knows_local_rank():
                self.pin_gpu(launched_process.local_rank())
            if affinity.are_limited():
                self.share_cores(affinity.compute_threads())
        except RuntimeError:
            warnings.warn(
                f"{self.framework} ran operations before easyddl could divide the cores and GPUs "
                "of this host among the ranks, so each rank may use all of them. Import easyddl "
                "first. If the script sets KERAS_BACKEND, it must do so before it uses "
                f"{self.framework}.",
                stacklevel=2,
            )

    @abc.abstractmethod
    def pin_gpu(self, local_rank):
        """Makes the framework use one GPU, unless the user has chosen one.

        Args:
            local_rank: Integer. This rank's number on its host. More ranks than GPUs share GPUs.

        Raises:
            RuntimeError: If the framework has run operations, so that it is too late.
        """

    @abc.abstractmethod
    def share_cores(self, threads):
        """Limits the framework's threads, unless the user has set a number.

        Called at import with an estimate, and again when the ranks know each other's CPUs.

        Args:
            threads: Integer. The number of threads that this rank should start.

        Raises:
            RuntimeError: If the framework has run operations, so that it is too late.
        """

    @abc.abstractmethod
    def threads_of_operations(self):
        """Returns how many threads an operation may use; `None` if the framework decides."""

    def gains_by_overlap(self, cores):
        """Returns whether a reduction within the host should overlap with the backward pass.

        Args:
            cores: Integer. This rank's share of the host's cores.
        """
        return True

    # Tensors.

    @abc.abstractmethod
    def is_tensor(self, x):
        """Returns whether `x` is a tensor, a variable or a sparse gradient of this backend."""

    @abc.abstractmethod
    def is_symbolic(self, x):
        """Returns whether `x` is a tensor without values, in a function that is being traced."""

    def infers_shapes(self, x):
        """Returns whether Keras infers shapes with this tensor. No tensors are reduced then."""
        return False

    @abc.abstractmethod
    def to_numpy(self, x):
        """Returns the values of a tensor or variable, as a NumPy array.

        Raises:
            TypeError: If `x` is symbolic.
        """

    @abc.abstractmethod
    def from_numpy(self, array, like):
        """Returns a tensor with an array's values and dtype, on the device of the tensor `like`."""

    def is_plain_variable(self, x):
        """Returns whether `x` serves as a variable although it has no method `assign`."""
        return False

    def assign(self, variable, value):
        """Assigns the values of a NumPy array to a variable that is plain."""
        raise NotImplementedError(f"Received: {variable!r}")

    def is_lost(self, variable):
        """Returns whether a variable of Keras has no value, because a step that took it failed."""
        return False

    def has_rows(self, gradient):
        """Returns whether a gradient is sparse and its rows can be gathered from all ranks."""
        return False

    def shared_parts(self, gradient):
        """Finds the parts of a sparse gradient whose rows are shared by all samples of a batch.

        The row of a shared index, such as a position, is a sum over all samples. On one process
        each shared row occurs once.

        Args:
            gradient: A sparse gradient: see `has_rows`. It may be the concatenation of several
                parts.

        Returns:
            List of booleans. Whether the rows of each part are shared.
        """
        raise NotImplementedError("This backend has dense gradients only.")

    @abc.abstractmethod
    def to_dense(self, gradient):
        """Returns a gradient as a dense tensor: itself unless it is sparse."""

    # A step that is being traced or run.

    def is_eager(self):
        """Returns whether steps run eagerly, so that each step may have other gradients."""
        return False

    def uncompiled(self, function, wholly=False):
        """Returns a version of a function that a compiler of Python code does not compile.

        Args:
            function: Any function. Backends that compile by tracing return it unchanged.
            wholly: Boolean. Whether the compiler also skips the functions that it calls.
        """
        return function

    @abc.abstractmethod
    def differentiable(self, forward, backward):
        """Returns a function of one tensor with a custom gradient.

        Args:
            forward: Function of a tensor.
            backward: Function of the upstream gradient. It returns the tensor's gradient.
        """

    def has_gradient(self, loss):
        """Returns whether a loss depends on variables; true where that is not known."""
        return True

    def unless(self, condition, act):
        """Calls a function if a scalar boolean tensor is false.

        Args:
            condition: Scalar boolean tensor.
            act: Function without arguments. Some backends call it in both cases, so a call must
                have no effect if `condition` is true.
        """
        keras.ops.cond(condition, lambda: None, act)

    def scope_of(self, x):
        """Returns the graph of a tensor, usable as a weak key; `None` if it has no graph."""
        return None

    def scope(self):
        """Returns the graph or trace that tensors are made in now; `None` in eager code."""
        return None

    def is_current(self, x):
        """Returns whether a tensor from an earlier point of the step can be used at this point."""
        return True

    def once_there_is_a_batch(self):
        """Returns a context for updates that must run only in a step that has a batch."""
        return contextlib.nullcontext()

    def changing(self, train_step, model, prepare):
        """Wraps a `train_step` so that the values of some variables are corrected after it.

        Args:
            train_step: The function that Keras's trainer calls.
            model: The Keras model of the step.
            prepare: Function without arguments, called before the step. It returns a pair: a list
                of Keras variables, and a function. The function takes two lists of the variables'
                values, before and after the step, and returns the values to assign. On JAX the
                variables must be non-trainable.
        """

        def values_of(variables):
            return [keras.ops.stop_gradient(keras.ops.copy(each.value)) for each in variables]

        @functools.wraps(train_step)
        def step(data):
            changed, change = prepare()
            before = values_of(changed)
            result = train_step(data)
            if changed:
                with self.once_there_is_a_batch():
                    after = change(before, values_of(changed))
                    for variable, value in zip(changed, after, strict=True):
                        variable.assign(value)
            return result

        return step

    def has_fixed_shape(self, function, arguments):
        """Returns whether the shape of a result follows from the shapes of the arguments alone.

        It does not if the function selects elements by their values, for example by a boolean mask.
        A backend that compiles for fixed shapes accepts no such function.

        Args:
            function: Function of tensors that returns a tensor.
            arguments: Tuple of tensors, and structures of tensors.
        """
        return True

    def noting_variables(self, train_step, note):
        """Wraps a `train_step` so that each trace of it tells which variables it uses.

        Args:
            train_step: Function.
            note: Function that is called during each trace, on a backend that knows the variables.
                Its argument is a function that returns a list of them after the trace.
        """
        return train_step

    def outside_of_step(self):
        """Returns a context in which variables have values while a step is traced or run.

        Returns:
            Context manager, or `None` if they have no values at this point.
        """
        return contextlib.nullcontext()

    def on_native_update(self, act):
        """Calls a function after each update of an optimizer of the framework itself.

        Args:
            act: Function of the list of gradients.
        """
        return None

    def checkpoint_writers(self):
        """Returns the functions with which the framework itself writes checkpoints.

        Each takes an object, then `file_prefix`, with which the paths of several files begin, and
        then other arguments. It returns the prefix.

        Returns:
            List of pairs: the owner, which is a class or a module, and the name.
        """
        return []

    # Layers.

    def untracked_state(self, layer):
        """Returns the `UntrackedState` of a layer: state in attributes that Keras does not track.

        The state of the layers inside of it is not included.
        """
        return UntrackedState()

    # Keras's trainer.

    @abc.abstractmethod
    def check_model(self, model):
        """Raises an error if easyddl cannot reduce the gradients in the step of a model."""

    def allow_fit_without_batch(self, model):
        """Makes a fit start without an error on a rank whose data contain no batch.

        Keras builds a model from the first batch.

        Returns:
            Function without arguments that undoes the change.
        """
        return lambda: None

    @abc.abstractmethod
    def on_first_batch(self, model, act):
        """Calls a function before the first step of a fit.

        Args:
            model: A Keras model in training.
            act: Function of the structure of the first batch.
        """

    def symbolic_batch(self, spec):
        """Returns a batch of `keras.KerasTensor` with the structure `spec`."""

        def symbol(leaf):
            if leaf is None:
                return None
            dtype = keras.backend.standardize_dtype(leaf.dtype)
            return keras.KerasTensor(tuple(leaf.shape), dtype)

        return keras.tree.map_structure(symbol, spec)

    def builds_in_step(self, model):
        """Returns whether the optimizers of a model create their variables in its first step."""
        return False

    def build(self, model, spec):
        """Creates the variables of a model from the structure of a batch, as its step would do.

        Returns:
            Boolean. Whether the variables exist now. If not, the first step creates them.
        """
        keras_trainer.build(model, self.symbolic_batch(spec))
        return True

    @abc.abstractmethod
    def trace_step(self, model, spec, preserved):
        """Traces the step of a model on a rank without a batch.

        The trace registers the reducers of the step, so that this rank can join the others.

        Args:
            model: A Keras model.
            spec: The structure of the other ranks' batches.
            preserved: `PreservedState`. It restores the state of the model. A backend needs it if
                it runs a step instead of tracing it.
        """

    def unwrapped(self, function):
        """Returns a train or test function as Keras's trainer made it, without our wrappers."""
        return function

    def begun(self, result):
        """Returns a step that Keras's trainer has started.

        Args:
            result: The result of the train function.

        Returns:
            `StepInProgress`. `None` if the step is already done when the train function returns. In
            this case an epoch in which a rank asks to stop ends after this step; otherwise it ends
            one step later.
        """
        return StepInProgress(wait=lambda: None, is_done=lambda: True)

    def unfinished(self, result):
        """Returns a function that waits for the end of a step, at which its time is taken.

        Args:
            result: The result of the train function.

        Returns:
            Function without arguments that returns when the step is done. `None` if the step is
            already done when the train function returns.
        """
        begun = self.begun(result)
        return begun and begun.wait

    def finish(self, model):
        """Waits for all steps that Keras's trainer has started."""
        return None

    def skip_steps(self, model, steps):
        """Makes the first steps of a fit read their batches without training on them.

        Args:
            model: A Keras model in training.
            steps: Integer. How many steps to skip: whole executions, with `steps_per_execution`.

        Returns:
            Function without arguments after which no more steps are skipped.
        """
        train_function = model.train_function
        left = steps

        def end():
            model.train_function = train_function

        def skip(*arguments):
            nonlocal left
            left -= keras_data.skip_execution(arguments[-1], model.steps_per_execution, left)
            if left <= 0:
                end()
            return self.result_without_step(model, *arguments[:-1])

        model.train_function = skip
        return end

    def result_without_step(self, model):
        """Returns what a train function returns, with the current results of the metrics.

        On JAX the state follows the model.
        """
        return model.get_metrics_result()

    # Random numbers.

    def random_state(self):
        """Returns the state of the random generators as JSON data; `None` without generators."""
        return None

    def set_random_state(self, captured):
        """Restores a state that `random_state` returned."""
        return None

    def random_state_of_another_rank(self, captured, distance):
        """Returns the state of the random generators for another rank, derived from a given state.

        Args:
            captured: The state of a rank, from `random_state`.
            distance: Integer. The number of the other rank minus the number of that rank.
        """
        return None

    def op_seeds(self):
        """Returns the numbers from which the framework's operations derive their seeds.

        Returns:
            Pair whose first item is an integer. `None` if operations have no seeds.
        """
        return None

    def set_op_seeds(self, seeds):
        """Restores the numbers that `op_seeds` returned.

        Args:
            seeds: The pair. If its second item is `None`, the sequence of seeds starts again.
        """
        return None

    def draw_seed(self):
        """Returns a random integer below 2**31 from the generator that shuffles Keras's arrays."""
        return int(np.random.randint(2**31))

    def replacing_shuffle(self, order, samples):
        """Returns a context in which Keras's `tf.data` datasets of arrays get another order.

        Args:
            order: `training.array_order.ArrayOrder`.
            samples: Integer. The number of samples.

        Returns:
            Context manager. It yields the function that replaces `tf.random.shuffle`.
        """
        raise NotImplementedError("Only Keras on TensorFlow creates a tf.data.Dataset of arrays.")
