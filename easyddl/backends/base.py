"""The contract of a Keras backend: one class for its framework, one for tensors in the engine."""

import abc
import contextlib

import keras

from easyddl.compat import keras_trainer


class Backend(abc.ABC):
    """A Keras backend. Its packages are the only modules that import the framework.

    What easyddl calls the structure of a batch (`spec`) is nested as the batch is. Each leaf says
    what is known of that array in every batch (`shape` and `dtype`), and is `None` where the
    batches hold `None`, as for sample weights that are not given.
    """

    # Devices.

    @abc.abstractmethod
    def configure(self):
        """Shares the machine's cores and GPUs among its ranks, where the user has set nothing.

        Called when easyddl is imported: frameworks take all cores and GPUs at their first
        operation.
        """

    @abc.abstractmethod
    def pin_gpu(self, local_rank):
        """Makes the framework use one GPU, unless the user has chosen one or it is too late.

        Args:
            local_rank: Integer. This rank's number on its host. Ranks share GPUs if they are more.
        """

    # Tensors.

    @abc.abstractmethod
    def is_tensor(self, x):
        """Whether the framework or Keras made `x`: a tensor, a variable or a sparse gradient."""

    @abc.abstractmethod
    def is_symbolic(self, x):
        """Whether `x` is a tensor without values, because a function is being traced."""

    def infers_shapes(self, x):
        """Whether Keras infers shapes with a tensor. Nothing is exchanged then."""
        return False

    @abc.abstractmethod
    def is_float(self, x):
        """Whether a tensor or variable holds floating-point numbers."""

    @abc.abstractmethod
    def to_numpy(self, x):
        """The values of a tensor or variable, as a NumPy array.

        Raises:
            TypeError: If `x` is symbolic.
        """

    @abc.abstractmethod
    def from_numpy(self, array, like):
        """A tensor with an array's values and dtype, on the device of the tensor `like`."""

    def is_variable(self, x):
        """Whether `x` is a variable of the framework, and not of Keras."""
        return False

    def assign(self, variable, value):
        """Gives a variable of the framework the values of an array."""
        raise NotImplementedError(f"Received: {variable!r}")

    def has_rows(self, gradient):
        """Whether a gradient is sparse, and its rows can be exchanged without the others."""
        return False

    @abc.abstractmethod
    def to_dense(self, gradient):
        """A gradient as a dense tensor: itself unless it is sparse."""

    # A step, while it is traced or taken.

    def uncompiled(self, function, wholly=False):
        """A function that a compiler of Python code leaves alone.

        Args:
            function: Any function. Backends that compile by tracing return it as it is.
            wholly: Boolean. Whether the compiler leaves alone what the function calls, too.
        """
        return function

    @abc.abstractmethod
    def differentiable(self, forward, backward):
        """A function of one tensor with a gradient of its own.

        Args:
            forward: Function of a tensor.
            backward: Function of the upstream gradient. It returns the tensor's gradient.
        """

    def unless(self, condition, act):
        """Calls `act` where a scalar boolean tensor is false.

        Args:
            condition: Scalar boolean tensor.
            act: Function without arguments. It must change nothing where `condition` is true,
                because a backend may call it there too.
        """
        keras.ops.cond(condition, lambda: None, act)

    def scope_of(self, x):
        """The graph that a tensor belongs to, as an object that can be a weak key; or `None`."""
        return None

    def is_current(self, x):
        """Whether a tensor that was noted earlier in a step can be used at this point of it."""
        return True

    def once_there_is_a_batch(self):
        """A context for updates that must run only in steps that have a batch."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def changing(self, train_step, model, begin):
        """A `train_step` that corrects what the step has assigned to some variables.

        Args:
            train_step: The function that Keras's trainer calls.
            model: The Keras model of the step.
            begin: Function without arguments, called before the step. It returns a list of Keras
                variables, and a function of two lists of their values, before and after the step,
                that returns the values to assign. On JAX the variables must be non-trainable.
        """

    def outside_of_step(self):
        """A context in which variables have values while a step is traced or taken.

        Returns:
            Context manager, or `None` if they have no values at this point.
        """
        return contextlib.nullcontext()

    # Keras's trainer.

    @abc.abstractmethod
    def check_model(self, model):
        """Raises an error if the step of a model cannot exchange gradients."""

    def begin_without_batch(self, model):
        """Lets Keras begin a fit on a rank whose data hold no batch to build the model with.

        Returns:
            Function that undoes it.
        """
        return lambda: None

    @abc.abstractmethod
    def on_first_batch(self, model, act):
        """Calls `act(spec)` with the structure of a fit's first batch, before its first step."""

    @abc.abstractmethod
    def symbolic_batch(self, spec):
        """A batch of a structure, made of `keras.KerasTensor`."""

    def builds_in_step(self, model):
        """Whether the optimizers of a model get their variables in its first step."""
        return False

    def build(self, model, spec):
        """Makes the variables of a model from the structure of a batch, as its step would.

        Returns:
            Boolean: whether the variables exist now. If not, only the first step makes them.
        """
        keras_trainer.build(model, self.symbolic_batch(spec))
        return True

    @abc.abstractmethod
    def trace_step(self, model, spec, preserved):
        """Traces the step of a model on a rank that has no batch, so that it joins the others'.

        Args:
            model: A Keras model.
            spec: The structure of the other ranks' batches.
            preserved: `training.dry_run.Preserved`: what must be the same afterwards. A backend
                needs it if it takes a step in place of tracing one.
        """

    def unwrapped(self, function):
        """The train or test function that Keras's trainer made, without easyddl's wrappers."""
        return function

    def begun(self, result):
        """How to wait for a step that Keras's trainer has begun.

        Args:
            result: What the train function returned.

        Returns:
            Function without arguments that waits until the step is done. `None` if it is done
            already: if a rank asked to stop in this step, the epoch then ends after it, and
            otherwise one step later.
        """
        return lambda: None

    def finish(self, model):
        """Waits until all steps that Keras's trainer has begun are done."""
        return None

    def synced(self, model):
        """Makes the variables of a model hold their values after the last step."""
        return None

    @abc.abstractmethod
    def skip_steps(self, model, steps):
        """Makes the first steps of a fit draw their data and train nothing.

        Args:
            model: A Keras model in training.
            steps: Integer. How many steps to skip.
        """

    @abc.abstractmethod
    def step_meter(self):
        """A new counter of training steps.

        Returns:
            Object with the attributes `samples` and `steps`: how many samples the steps have
            taken, and how many steps there were. Its `watch(fit)` starts counting; call it in a
            callback's `set_model`.
        """

    # Random numbers.

    def random_state(self):
        """The state of the framework's generators, in a form for JSON; `None` if it has none."""
        return None

    def set_random_state(self, captured):
        """Restores what `random_state` returned."""
        return None

    def random_state_of_another_rank(self, captured, distance):
        """The state of a rank, derived from that of the rank `distance` places before it."""
        return None

    def op_seeds(self):
        """What the framework's operations derive their seeds from.

        Returns:
            Pair, whose first is an integer, or `None` if operations have no seeds.
        """
        return None

    def set_op_seeds(self, seeds):
        """Restores what `op_seeds` returned. The second of the pair may be `None`: a new start."""
        return None

    # Gradients.

    @abc.abstractmethod
    def submitter(self, engine, buckets, shapes):
        """What hands tensors to the engine: a `Submitter`.

        Args:
            engine: `_core.Exchange` or `_core.StepSum`.
            buckets: List of lists of indices. Which tensors travel together, in which order.
            shapes: List of tuples. The shape of each tensor.
        """


class Submitter(abc.ABC):
    """Hands the tensors of one registration to the engine at every step, and takes the results.

    Args:
        engine: `_core.Exchange` or `_core.StepSum`.
        buckets: List of lists of indices. Which tensors travel together, in which order.
        shapes: List of tuples. The shape of each tensor.
    """

    def __init__(self, engine, buckets, shapes):
        self._engine = engine
        self._buckets = buckets
        self._shapes = shapes

    @abc.abstractmethod
    def reduce(self, tensors, weight=None):
        """The mean of each tensor over all ranks, or its sum if the engine's object adds up.

        Args:
            tensors: List of tensors, in the order of registration.
            weight: Scalar tensor or number: the weight of this rank's batch. `None` counts as 1.

        Returns:
            List of tensors of the same length. In a step that is being traced, these are symbolic.
        """

    def zeros(self, dtype, shape):
        """What a rank submits for a gradient that it does not have."""
        return keras.ops.zeros(shape, dtype)

    def gather_rows_of(self, indices):
        """Makes all ranks exchange the rows of some tensors, which are sparse and in no bucket."""
        raise NotImplementedError(f"Sparse gradients are exchanged as dense ones. {indices}")

    def no_rows(self, dtype, shape):
        """What a rank submits for a sparse gradient that it does not have."""
        raise NotImplementedError("Sparse gradients are exchanged as dense ones.")

    def watch(self, variables, weight):
        """Submits gradients before `reduce` is called, where the backend allows it.

        A compiled step needs no watching: it submits each bucket as soon as it is computed.

        Args:
            variables: List of the variables that the gradients belong to.
            weight: Function without arguments that returns the weight of this rank's batch.
        """
        return None

    def unwatch(self):
        """Ends what `watch` began: gradients are submitted by `reduce` alone."""
        return None

    def stop(self):
        """Waits for what all ranks have submitted. Called before the engine's object closes."""
        return None

    def close(self):
        """Frees buffers. Called when the engine's object has closed and no longer uses them."""
        return None
