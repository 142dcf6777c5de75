"""The losses that a `compute_loss` calls, and their denominators.

Keras's `compute_loss` calls each compiled loss, multiplies its value by a loss weight and adds the
products. Therefore easyddl may scale each of these values by itself. What the user's own code
computes from losses is one number. It is a mean if all these losses are means, and is only scaled
as a whole.
"""

import contextlib
import dataclasses
import weakref

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_loss, patches, user_code
from easyddl.reducer import allreduce
from easyddl.runtime import world
from easyddl.steps import context
from easyddl.steps.batch_weight import UNWEIGHTED
from easyddl.training.step import scalar_losses

# Represents the denominator of a loss that is weighted by the number of samples of its batch.
_BY_SAMPLES = object()

_SUPER = "the result of super().compute_loss"  # for messages

_selects = {}  # results of `_selects_values`, by the id of the loss


@dataclasses.dataclass
class _Call:
    """A call of a loss.

    Attributes:
        is_compiled: Boolean. Whether Keras calls the loss, because `compile` was given it.
        selects: Boolean: see `_selects_values`.
        is_reduced: Boolean. Whether Keras has reduced its values, so that what follows is known.
        denominator: Scalar float32 tensor, `UNWEIGHTED` for a sum, `_BY_SAMPLES`, or `None` for
            one number that may be either.
        is_uneven: Boolean. Whether the denominator may have another share than the samples.
        outputs: The shape of the outputs that the loss is called with.
        length: Integer. The first dimension of the values; `None` if it is not known.
        value: Tensor. What the loss returned.
        called: List of `_Call`. The losses that the loss has called itself.
    """

    is_compiled: bool = False
    selects: bool = False
    is_reduced: bool = False
    denominator: object = None
    is_uneven: bool = False
    outputs: tuple = ()
    length: int | None = None
    value: object = None
    called: list = dataclasses.field(default_factory=list)


class RecordedLosses:
    """The losses of one batch.

    Args:
        kind_of_scalars: `"mean"`, `"sum"` or `None`. The kind of losses that arrive as one number.
        samples: Integer or scalar tensor. The number of samples of the batch; `None` without
            inputs.
        lengths: Dict. The lengths of the losses that an own `compute_loss` has called, by the
            number of samples. This object adds to it.
        given: Tuple. The arguments of the `compute_loss`.

    Attributes:
        samples: Scalar float32 tensor. The number of samples; `None` without inputs.
    """

    def __init__(self, kind_of_scalars, samples, lengths, given):
        self._kind_of_scalars = kind_of_scalars
        self._batch_size, self._lengths = samples, lengths
        self.samples = None if samples is None else ops.cast(samples, "float32")
        self._scope = backends.require().scope()
        self._own = _Call()  # stands for an own `compute_loss`
        self._keras = _Call()  # stands for Keras where it calls the compiled losses
        self._calls = [self._own]  # the innermost last
        self._traced_lengths = None  # a list while a loss is traced, whose values are no step's
        self._given, self._has_own_weights = given, False
        self._reads_added = False

    @contextlib.contextmanager
    def recording(self, classes):
        """Returns a context that records each loss that is called in it.

        All losses of Keras and of users that subclass them call one function of Keras, which
        receives their masks and weights. This context replaces that function, and the methods that
        call losses.

        Args:
            classes: The classes whose `__call__` calls a loss: see `classes_of`.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(keras_loss.reduction_wrapped(self._reduction))
            stack.enter_context(keras_loss.compiled_losses_wrapped(self._compiled_losses))
            for cls in classes:
                stack.enter_context(patches.replaced(cls, "__call__", self._call(cls)))
            yield

    def note_weights(self, sample_weight):
        """Notes with which sample weights an own `compute_loss` calls Keras's, or a loss.

        If it has computed them itself, they may be divided by their sum. Then the loss may be a
        mean, although Keras adds its values.
        """
        given = (*self._given, *keras.tree.flatten(self._given))  # also one of several outputs
        is_given = any(each is sample_weight for each in given)
        self._has_own_weights = sample_weight is not None and not is_given

    def note_result_of_keras(self, loss):
        """Notes what an own `compute_loss` gets from Keras's."""
        self._keras.value = loss

    def note_read(self, model, found):
        """Notes the losses that an own `compute_loss` reads from `losses` of a model or a layer."""
        self._reads_added |= any(scalar_losses.is_added(model, each) for each in found)

    def finish(self, loss, is_own):
        """Scales what a `compute_loss` returned.

        Args:
            loss: Scalar tensor.
            is_own: Boolean. Whether the user's model has its own `compute_loss`.

        Returns:
            Tuple of the loss, which is multiplied by the number of ranks if it is a sum, and the
            denominator of the batch: see `BatchWeight.set`. `None` stands for the samples.
        """
        if is_own and self._keras.value is None:
            self._check_lengths()
            denominator = self._of_number(loss, self._own, "an own compute_loss returns one number")
            if denominator is UNWEIGHTED:
                return loss * world.size(), UNWEIGHTED
        else:
            if self._kind_of_scalars == "mean":
                pass
            elif not _are_means(self._own.called):
                scalar_losses.warn_of_added_sum("a loss with reduction 'sum' or None", _SUPER)
            elif is_own and not self._keras.called and loss is not self._keras.value:
                scalar_losses.warn_of_added_sum("a number", _SUPER)
            denominator = _total(self._keras.called)
        return loss, self.samples if denominator is _BY_SAMPLES else denominator

    def _compiled_losses(self, original):
        def call(*args, **kwargs):
            self._calls.append(self._keras)
            try:
                return original(*args, **kwargs)
            finally:
                self._calls.pop()

        return call

    def _call(self, cls):
        original = cls.__call__

        def call(loss, *args, **kwargs):
            if self._traced_lengths is not None:
                return original(loss, *args, **kwargs)
            caller = self._calls[-1]
            made = _Call(is_compiled=caller is self._keras)
            self._calls.append(made)
            try:
                if cls is keras.losses.Loss:
                    self._examine(made, loss, *args, **kwargs)
                made.value = original(loss, *args, **kwargs)
            finally:
                self._calls.pop()
            caller.called.append(made)
            return self._weighted(made)

        return call

    def _examine(self, made, loss, y_true, y_pred, sample_weight=None):
        if self._calls[-2] is self._own:
            self.note_weights(sample_weight)
        if made.is_compiled:  # the user's own code may pass lists of numbers
            made.outputs = keras.tree.flatten(y_pred)[0].shape
        # Eager code of the user may call a loss on some ranks only: it must cause no collective.
        if world.size() == 1 or (not made.is_compiled and backends.require().is_eager()):
            return
        self._traced_lengths = []
        try:
            made.selects = _selects_values(loss, y_true, y_pred, self._traced_lengths)
        finally:
            self._traced_lengths = None

    def _reduction(self, original):
        def reduce(
            values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None
        ):
            loss = original(values, sample_weight, mask, reduction, dtype)
            shape = getattr(values, "shape", ())  # a Python number has none
            if self._traced_lengths is not None:
                self._traced_lengths.extend(shape[:1])
                return loss
            made = self._calls[-1]
            made.is_reduced = True
            if len(shape) == 0:  # the loss function has reduced them
                source = "a loss function returns one number"
                made.denominator = self._of_number(values, made, source)
                made.is_uneven = made.selects and _are_means([made])
                return loss
            if reduction in (None, "none"):
                return loss
            made.length = shape[0]
            if made.is_compiled and not made.selects and not _fits(made.length, made.outputs):
                source = "a loss function returns values that are not one for each sample"
                made.denominator = self._of_number(loss, made, source)
            elif reduction == "sum" and self._has_own_weights:
                source = "an own compute_loss passes weights of its own to a loss that is a sum"
                made.denominator = self._of_number(loss, made, source)
            elif reduction == "sum":
                made.denominator = UNWEIGHTED
            else:
                made.denominator = _denominator(values, sample_weight, mask, reduction)
                has_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
                made.is_uneven = made.selects or mask is not None or has_weights
            return loss if len(loss.shape) == 0 else ops.sum(loss)  # empty values on PyTorch

        return reduce

    def _weighted(self, made):
        """Scales the value of a loss, if Keras calls it or its denominator is uneven."""
        if not made.is_reduced and len(getattr(made.value, "shape", ())) == 0:
            source = "a loss with a __call__ of its own returns one number"
            made.denominator = self._of_number(made.value, made, source)
        is_inner = backends.require().scope() is not self._scope  # in a loop or a branch
        may_weight = is_in_step() and self.samples is not None
        if made.is_uneven and may_weight and (made.is_compiled or not is_inner):
            made.value = _weighted_by_samples(made.value, made.denominator, self.samples)
            made.denominator = _BY_SAMPLES
        elif made.is_compiled and made.denominator is UNWEIGHTED:
            made.value = made.value * world.size()
        elif is_inner and _are_means([made]):
            made.denominator = self.samples  # its own tensor cannot be used outside
        return made.value

    def _of_number(self, number, caller, source):
        """Returns the denominator of a number that the user's code has computed.

        Args:
            number: Scalar tensor.
            caller: The `_Call` in which the code ran.
            source: String. The beginning of the warning if it is not known.
        """
        for each in caller.called:
            if each.value is number and each.denominator is not None:
                return each.denominator
        if self._kind_of_scalars == "sum":
            return UNWEIGHTED
        are_means = bool(caller.called) and _are_means(caller.called)
        # A compiled loss function is rarely a combination of other losses, a `compute_loss` mostly.
        is_known = are_means and not caller.is_compiled
        is_constant = isinstance(number, int | float) or not backends.require().has_gradient(number)
        is_outermost = caller.is_compiled or caller is self._own
        if self._kind_of_scalars is None and is_outermost and not is_constant:
            if not is_known:
                scalar_losses.warn_of_unknown_kind(source)
            elif self._reads_added:
                scalar_losses.warn_of_added_sum("a loss of add_loss()", "losses of Keras")
        return _total(caller.called) if are_means else None

    def _check_lengths(self):
        """Warns of losses that drop different samples, whose lengths vary between batches."""
        lengths = [each.length for each in self._own.called]
        if world.size() == 1 or not isinstance(self._batch_size, int) or len(set(lengths)) < 2:
            return
        if lengths != self._lengths.setdefault(self._batch_size, lengths):
            scalar_losses.warn_of_different_lengths()


def is_in_step():
    """Returns whether a step of all ranks runs, so that a loss may call a collective."""
    return world.size() > 1 and context.running_step() is not None


def classes_of(losses):
    """Returns `Loss`, and the other classes whose `__call__` the losses of `compile` have."""
    classes = {keras.losses.Loss: None}
    for each in keras.tree.flatten(losses):
        if isinstance(each, keras.losses.Loss):
            classes |= {cls: None for cls in type(each).__mro__ if "__call__" in vars(cls)}
    return classes


def _fits(length, outputs):
    """Returns whether values may be as many for each output; a graph may not know their numbers."""
    if len(outputs) == 0 or not isinstance(length, int):
        return True
    return outputs[0] is not None and length % max(outputs[0], 1) == 0 and length >= outputs[0]


def _are_means(calls):
    return all(
        each.denominator is not None and each.denominator is not UNWEIGHTED for each in calls
    )


def _total(calls):
    """Returns the denominator of a sum of losses: see `_Call`."""
    found = [each.denominator for each in calls if each.denominator is not None]
    for special in (UNWEIGHTED, _BY_SAMPLES):
        if any(each is special for each in found):
            return special
    return sum(found[1:], start=found[0]) if found else None


def _selects_values(loss, y_true, y_pred, lengths):
    """Returns whether a loss may drop samples, for example those without a label.

    Keras's own losses do not. The result follows from the code of the loss and from the shapes, so
    it is the same on all ranks.

    Args:
        loss: Instance of `keras.losses.Loss`.
        y_true: Tensor, or structure of tensors.
        y_pred: Tensor, or structure of tensors.
        lengths: Empty list, to which a trace adds the lengths of the values of the losses that
            this loss calls. `None` represents a length that follows from the values of a mask.
    """
    key = id(loss)  # a dataclass has no hash
    if key not in _selects:
        code = type(loss), getattr(loss, "fn", type(loss))
        if all(map(user_code.is_of_keras, code)):
            return False
        arguments = keras.tree.map_structure(
            lambda x: ops.convert_to_tensor(x, dtype=loss.dtype), (y_true, y_pred)
        )
        traced = object.__new__(type(loss))  # it may keep tensors, which belong to the trace
        vars(traced).update(vars(loss))
        is_fixed = backends.require().has_fixed_shape(traced.call, arguments)
        _selects[key] = not is_fixed or None in lengths
        weakref.finalize(loss, _selects.pop, key, None)
    return _selects[key]


def _weighted_by_samples(loss, denominator, samples):
    """Returns a loss with the value over all ranks, whose gradient is weighted by samples.

    With masks, weights or dropped samples, the losses of a step have different shares of the ranks.
    This factor turns the mean weighted by samples into the mean weighted by denominators. Therefore
    one weight is right for all losses of a step and for losses that layers add. Keras weights the
    values that it reports by samples, so it reports the value of one process.

    Args:
        loss: Scalar tensor. The loss of this rank's batch.
        denominator: Scalar float32 tensor. Its denominator.
        samples: Scalar float32 tensor. The number of samples of the batch.
    """
    loss = ops.where(denominator > 0, loss, 0)  # a mean over no values may be NaN
    mine = ops.stack([ops.cast(loss, "float32") * denominator, denominator, samples])
    total = allreduce.in_step(ops.stop_gradient(mine), "sum")
    share = ops.divide_no_nan(denominator, total[1]) / ops.divide_no_nan(samples, total[2])
    scaled = loss * ops.stop_gradient(ops.cast(share, loss.dtype))
    mean = ops.cast(ops.divide_no_nan(total[0], total[1]), loss.dtype)
    return scaled + ops.stop_gradient(mean - scaled)


def _denominator(values, sample_weight, mask, reduction):
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = ops.cast(sample_weight, "float32")
        if mask is None:
            return ops.sum(weights)
        mask, weights = keras_loss.to_same_rank(ops.cast(mask, "float32"), weights)
        return ops.sum(weights * mask)
    count = _count(values)
    if mask is None:
        return count
    return count * ops.sum(ops.cast(mask, "float32")) / ops.maximum(_count(mask), 1)


def _count(x):
    return ops.cast(ops.prod(ops.convert_to_tensor(ops.shape(x), "int32")), "float32")
