"""Checks whether all ranks hold the same model."""

import zlib

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments, arrays, objects
from easyddl.collectives.variables import checksum, value_of
from easyddl.runtime import console, notices, settled_errors
from easyddl.training import (
    adapted_layers,
    compiled_step,
    layer_constants,
    layer_state,
    model_state,
)

ROUNDING = (
    "If they differ by rounding only (by less than 1e-5), a custom step computes with numbers that "
    "differ by rank, and does not undo that exactly."
)
_CHANGED = (
    f"{ROUNDING} Otherwise something other than the optimizer changes them on some ranks only (a "
    "callback, for example), or draws random numbers that differ between ranks."
)
_NOT_SHARED = (
    "Every rank draws initial weights of its own. Load the same weights on all ranks, or call "
    "`ddl.broadcast_variables(model.weights)` before."
)


def check(model, place):
    """Raises the same error on all ranks unless their weights and optimizer variables are equal.

    Each rank computes a checksum of each variable (CRC-32 of its bytes), and of the arrays that
    layers keep in attributes. The ranks exchange the checksums, not the variables. Variables that
    are expected to differ are not compared: the moving statistics of batch normalization, the
    states of stateful RNNs, state of layers that is synchronized at the end of an epoch, and
    accumulated gradients.

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
    found, constants = _differences(model, variables, layer_constants.of(model).arrays)
    texts = []
    if found:
        texts.append(f"The ranks' models differ {place}: {found}. {cause}")
    if constants:
        texts.append(f"The ranks' {text_of_constants(place, constants)}")
    if texts:
        raise settled_errors.settled(RuntimeError(" ".join(texts)))


def text_of_constants(place, constants):
    """Returns the end of a message about values that layers keep: see `differences`."""
    return (
        f"layers keep different values {place}: {constants}. Each rank computed them by itself. "
        "Compute them with all data before split_data, set a seed, or take those of one rank by "
        "ddl.broadcast_object()."
    )


def differences(model, constants):
    """Describes what differs between ranks. Collective.

    Args:
        model: A built Keras model in training.
        constants: Dict of checksums by name: see `layer_constants.Constants`.

    Returns:
        Pair of strings that name the variables, and the constants, with the ranks; `None` if there
        are no differences.
    """
    return _differences(model, model_state.shared_variables(model), constants)


def _differences(model, variables, constants):
    late = {id(variable) for variable in layer_state.synced_at_epoch_end(model)}
    compared = [each for each in variables if id(each) not in late]
    mine = [checksum(value_of(each)) for each in compared]
    mine.append(zlib.crc32(repr(sorted(constants.items())).encode()))
    checksums = arrays.allgather(np.array([mine], np.int64))
    differing = np.flatnonzero((checksums != checksums[0]).any(axis=0)).tolist()
    of_variables = [i for i in differing if i < len(compared)]
    shown = [
        _shown(getattr(compared[i], "path", compared[i].name), checksums[:, i])
        for i in of_variables
    ]
    sizes = _sizes_of_differences([compared[i] for i in of_variables[: console.MOST_SHOWN]])
    shown[: len(sizes)] = map("{} ({})".format, shown, sizes)
    of_constants = _differing(constants) if len(compared) in differing else None
    return console.first(shown, "; ") if shown else None, of_constants


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


def _checksums_in_step(variables):
    """Returns checksums of variables by name; none if they have no values here, as on JAX."""
    backend = backends.require()
    outside = backend.outside_of_step()
    if outside is None:
        return {}
    found = {}
    with outside:
        if any(backend.is_symbolic(keras.ops.convert_to_tensor(each)) for each in variables):
            return {}
        for i, each in enumerate(variables):
            name = arguments.comparable_name(getattr(each, "path", each.name))
            found[f"variable {i + 1}, {name}"] = checksum(value_of(each))
    return found


def compare_first_update(variables):
    """Warns if a script's own loop begins with variables that differ between ranks. Collective.

    Called where the ranks register the gradients of the loop.

    Args:
        variables: List of what the loop updates: weights, and variables of the optimizer.
    """
    found = _differing(_checksums_in_step(variables))
    if found:
        notices.tell(
            "warning: the ranks' variables differ at the first update of a DistributedOptimizer: "
            f"{found}. The ranks apply the same gradients to different weights. Call "
            "`ddl.broadcast_variables(model.weights + optimizer.variables)` before, after "
            "`optimizer.build(model.trainable_variables)`."
        )


def _differing(mine):
    """Describes the named values that differ between ranks. Collective.

    Args:
        mine: Dict of checksums by name, such as those of `layer_constants.Constants`.

    Returns:
        String that names the values and the ranks; `None` if there are no differences.
    """
    by_rank = objects.allgather_object(mine)
    names = sorted(set(by_rank[0]).intersection(*by_rank[1:]))
    values = {name: [each[name] for each in by_rank] for name in names}
    shown = [_shown(name, each) for name, each in values.items() if len(set(each)) > 1]
    return console.first(shown, "; ") if shown else None


def _shown(name, checksums):
    others = [rank for rank, each in enumerate(checksums) if each != checksums[0]]
    return f"{name} on {console.ranks(others)} is not rank 0's"
