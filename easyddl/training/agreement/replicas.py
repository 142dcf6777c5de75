"""Checks whether all ranks hold the same model."""

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments, arrays, differences, objects
from easyddl.collectives.variables import checksum, value_of
from easyddl.compat import keras_trainer
from easyddl.runtime import console, notices, settled_errors
from easyddl.training.agreement import layer_arrays
from easyddl.training.state import adapted_layers, layer_state, model_state
from easyddl.training.step import compiled_step

_CHANGED = (
    "If they differ by rounding only (by less than 1e-5), a custom step computes with numbers that "
    "differ by rank, and does not undo that exactly. Otherwise something other than the optimizer "
    "changes them on some ranks only (a callback, for example), or they are computed from random "
    "numbers, which each rank draws by itself."
)
_NOT_SHARED = (
    "Every rank draws initial weights of its own. Load the same weights on all ranks, or call "
    "`ddl.broadcast_variables(model.weights)` before."
)


def check(model, place):
    """Raises the same error on all ranks unless their weights and optimizer variables are equal.

    Each rank computes a checksum of each variable (CRC-32 of its bytes). The ranks exchange the
    checksums, not the variables. Variables that are expected to differ are not compared: the moving
    statistics of batch normalization, the states of stateful RNNs, state of layers that is
    synchronized at the end of an epoch, and accumulated gradients.

    Args:
        model: A built Keras model in training.
        place: String. When the check happens, for the error message.

    Raises:
        RuntimeError: On all ranks. The message names the variables and the ranks.
    """
    _require_equal(model, model_state.shared_variables(model), place, _CHANGED)


def check_predictions(model, place):
    """Raises the same error on all ranks unless their models predict the same. Collective.

    Unlike in `check`, the variables of optimizers may differ, as after a training on one rank.

    Args:
        model: A Keras model outside of fits.
        place: String: see `check`.

    Raises:
        RuntimeError: On all ranks: see `check`.
    """
    if adapted_layers.derive_again(model):
        compiled_step.drop_test_constants(model)
    of_optimizers = {id(v) for each in model_state.optimizers(model) for v in each.variables}
    shared = model_state.shared_variables(model)
    weights = [each for each in shared if id(each) not in of_optimizers]
    counts = objects.allgather_object(len(weights))
    if len(set(counts)) > 1:
        raise settled_errors.settled(
            RuntimeError(
                f"The ranks' models have different numbers of weights {place}. Build the model on "
                "all ranks, by keras.Input(...) or a call on a batch, and load the same weights. "
                f"Received: {console.by_rank(counts)}"
            )
        )
    _require_equal(model, weights, place, _NOT_SHARED)


def _require_equal(model, variables, place, cause):
    found = _named_differences(_compared(model, variables))
    if found:
        text = f"The ranks' models differ {place}: {found}. {cause}"
        raise settled_errors.settled(RuntimeError(text))


def are_equal(model):
    """Returns whether the ranks' weights and optimizer variables are equal. Collective."""
    compared = _compared(model, model_state.shared_variables(model))
    return not differences.differences(_checksums(compared))


def compare_after_fit(model, arrays_before, used_variables):
    """Warns if the ranks' models differ after a fit, or what the steps have computed with.

    Collective.

    Args:
        model: A built Keras model.
        arrays_before: Dict. `layer_arrays.checksums_of(model)` at the start of the fit.
        used_variables: List of variables that the compiled steps use, in any order: see
            `Backend.noting_variables`.
    """
    found = _named_differences(_compared(model, model_state.shared_variables(model)))
    if found:
        notices.tell(
            f"warning: the ranks' models differ after model.fit(): {found}. {_CHANGED} "
            "DDLCallback(check_replicas=1) finds the step; check_replicas=False disables this "
            "comparison."
        )
    untracked = _untracked(model, used_variables) if used_variables else {}
    arrays_now = layer_arrays.checksums_of(model) if arrays_before else {}
    kept = sorted(arrays_now.items() & arrays_before.items())
    differing = differences.differences(
        {("array", name): found for name, found in kept}
        | {("variable", name): found for name, found in _checksums(untracked).items()}
    )
    by_kind = {"array": {}, "variable": {}}
    for (kind, name), values in differing.items():
        if None not in values:  # it has changed in the fit on some ranks, or not been used
            by_kind[kind][name] = values
    if by_kind["array"]:
        notices.tell(
            "warning: the ranks' layers keep different arrays in attributes: "
            f"{_listed(by_kind['array'])}. If the steps compute with them, compute them with all "
            "data before split_data, set a seed, or take those of one rank by "
            "ddl.broadcast_object(). check_replicas=False disables this comparison."
        )
    if by_kind["variable"]:
        notices.tell(
            "warning: the steps of model.fit() use variables that the model does not track. "
            "Nothing broadcasts them, and the ranks have different values. Create them by "
            "add_weight() of a layer or of the model, or pass them to ddl.broadcast_variables() "
            f"before fit(). Received: {_listed(by_kind['variable'])}"
        )


def _untracked(model, used_variables):
    """Returns those variables that the model does not track and that must be equal, by name."""
    tracked = [*model.variables, *model.metrics_variables, *model_state.all_variables(model)]
    # Those of each rank's own batches.
    tracked += [*layer_state.batch_states(model), *keras_trainer.loss_variables(model)]
    known = {id(each) for v in tracked for each in (v, getattr(v, "value", None))}
    # Counters and the states of random generators are each rank's own.
    untracked = [
        each for each in used_variables if id(each) not in known and each.dtype.is_floating
    ]
    return _named(sorted(untracked, key=lambda each: arguments.comparable_name(each.name)))


def compare_first_update(variables):
    """Warns if a script's own loop begins with variables that differ between ranks. Collective.

    Called where the ranks register the gradients of the loop.

    Args:
        variables: List of what the loop updates: weights, and variables of the optimizer.
    """
    outside = backends.require().outside_of_step()
    found = {}
    if outside is not None:
        with outside:
            if all(map(_has_value, variables)):
                found = _checksums(_named(variables))
    differing = differences.differences(found)
    if differing:
        notices.tell(
            "warning: the ranks' variables differ at the first update of a DistributedOptimizer: "
            f"{_listed(differing)}. The ranks apply the same gradients to different weights. Call "
            "`ddl.broadcast_variables(model.weights + optimizer.variables)` before, after "
            "`optimizer.build(model.trainable_variables)`."
        )


def _has_value(variable):
    backend = backends.require()
    # Keras takes the values out of the variables of a model while its step runs on JAX.
    return not backend.is_lost(variable) and not backend.is_symbolic(
        keras.ops.convert_to_tensor(variable)
    )


def _compared(model, variables):
    """Returns those of a model's variables that are equal on all ranks now, by name."""
    late = {id(variable) for variable in layer_state.synced_at_epoch_end(model)}
    return _named([each for each in variables if id(each) not in late])


def _named(variables):
    """Returns variables by names that are the same on all ranks."""
    return {
        f"variable {i + 1}, {arguments.comparable_name(getattr(each, 'path', each.name))}": each
        for i, each in enumerate(variables)
    }


def _checksums(variables):
    return {name: checksum(value_of(each)) for name, each in variables.items()}


def _named_differences(variables):
    """Describes the variables that differ between ranks, and by how much. Collective.

    Args:
        variables: Dict of variables by name.

    Returns:
        String; empty if there are no differences.
    """
    differing = differences.differences(_checksums(variables))
    compared = [name for name, values in differing.items() if None not in values]
    sizes = _sizes_of_differences([variables[name] for name in compared[: console.MOST_SHOWN]])
    notes = dict(zip(compared, sizes, strict=False))
    return _listed(differing, notes)


def _listed(differing, notes=()):
    """Returns a text that names values and the ranks that have others than rank 0.

    Args:
        differing: Dict of lists of the ranks' values by name.
        notes: Dict of texts by name, for some of them.
    """
    texts = []
    for name, values in differing.items():
        others = [rank for rank, each in enumerate(values) if each != values[0]]
        note = f" ({notes[name]})" if name in notes else ""
        texts.append(f"{name} on {console.ranks(others)} is not rank 0's{note}")
    return console.first(texts, "; ")


def _sizes_of_differences(compared):
    """Returns texts that say how large the differences of variables are. Collective."""
    values = [value_of(each) for each in compared]
    roots = arrays.broadcast_arrays(values, 0, "variables that differ") if values else []
    mine = [_distance(*pair) for pair in zip(values, roots, strict=True)]
    by_rank = objects.allgather_object(mine)
    largest = [max(each) for each in zip(*by_rank, strict=True)]
    return [f"by up to {each:.1e} of its largest value" for each in largest]


def _distance(value, root):
    """Returns the largest difference of two arrays, relative to the largest value."""
    value, root = value.astype(np.float64), root.astype(np.float64)
    if value.size == 0:
        return 0.0
    scale = np.abs(root).max() or 1.0
    return float(np.abs(value - root).max() / scale)
