"""What the ranks compare at the begin of a fit: their data, and their configuration.

Each rank runs the script by itself, so each may pass other data or make another model. The ranks
would train together without a word, and get another result than one process.
"""

import dataclasses
import zlib

import keras

from easyddl.collectives import objects
from easyddl.data import dataset_files, global_random, kinds, lookup_tables, split_calls, summary
from easyddl.runtime import console, notices, settled_errors, world
from easyddl.training import configuration, lost_variables

# The arguments of `fit` that must be equal on all ranks, with their defaults.
_EQUAL = {"epochs": 1, "initial_epoch": 0, "validation_freq": 1}

_MOST_SHOWN = 80  # characters of a value in a message

_ADVICE = (
    "Each rank runs the script by itself: set seeds before random choices, sort what the file "
    "system lists, and let one rank choose what is searched, by ddl.broadcast_object()."
)


@dataclasses.dataclass
class Inputs:
    """What one rank passes to a fit, as far as the ranks compare it.

    Attributes:
        seed: Integer. The seed of the order of arrays; `None` if the fit does not shuffle arrays.
        validates: Boolean. Whether there are validation data.
        arguments: Dict of the arguments of `fit` that the ranks compare.
        problem: String. What is wrong with the lengths of the data, or `None`.
        splits: Dict of `split_calls.Call`: the calls of `split_data` before the fit.
        x: Dict of `summary.Summary` by path; empty if the data came from `split_data`.
        validation: The same of the validation data; empty also if they are declared as shards.
        validates_shard: Boolean. Whether the validation data are known to be a shard.
        output_names: List of the names of the model's outputs, if it has several.
        configuration: Dict of checksums of the model's configuration, by section.
        files: List of `dataset_files.File` of `x`.
        validation_files: The same of the validation data.
        tables: List of the sizes and checksums of lookup tables, of `x` and of validation data.
        numbers_may_differ: Boolean: see `global_random.may_differ`.
        has_lost_variables: Boolean: see `lost_variables.are_there`.
    """

    seed: int | None
    validates: bool
    arguments: dict
    problem: str | None
    splits: dict
    x: dict
    validation: dict
    validates_shard: bool
    output_names: list
    configuration: dict
    files: list
    validation_files: list
    tables: list
    numbers_may_differ: bool
    has_lost_variables: bool


def compare(fit, seed):
    """Compares what the ranks pass to a fit. Collective.

    Args:
        fit: `FitContext` of a fit that Keras has not begun.
        seed: Integer or `None`: see `Inputs`.

    Returns:
        List of `Inputs`, by rank.

    Raises:
        ValueError: On all ranks, if their data or configurations differ so that no broadcast makes
            them equal.
    """
    # The learning rate is a variable, too.
    sections = {} if fit.has_lost_variables else configuration.sections_of(fit.model)
    mine = _inputs_of(fit, seed, configuration.checksums(sections))
    by_rank = objects.allgather_object(mine)
    has_lost_by_rank = [each.has_lost_variables for each in by_rank]
    lost_variables.restore(fit.model, has_lost_by_rank)
    _compare_arguments(by_rank)
    _require_lengths([each.problem for each in by_rank])
    _compare_splits([each.splits for each in by_rank])
    if not any(has_lost_by_rank):
        _compare_configurations([each.configuration for each in by_rank], sections)
    _compare_steps(by_rank)
    _compare_class_weights([each.arguments["class_weight"] for each in by_rank])
    _compare_validation([each.validation for each in by_rank])
    _compare_files(by_rank)
    for tables in zip(*(each.tables for each in by_rank), strict=True):
        _compare_tables(tables)
    _compare_output_names([each.output_names for each in by_rank])
    if summary.are_equal([each.x for each in by_rank]):
        notices.tell_once(
            "the same x",
            f"warning: all {world.size()} ranks pass the same x to model.fit(), and train on the "
            "same samples. Split the data before, by ddl.split_data(x, y).",
        )
    return by_rank


def _inputs_of(fit, seed, checksums):
    arguments = fit.arguments
    validation = arguments.get("validation_data")
    numbers = ["epochs", "initial_epoch", "steps_per_epoch", "validation_steps"]
    is_shard = any(getattr(each, "validation", None) == "split" for each in fit.callbacks)
    return Inputs(
        seed=seed,
        validates=validation is not None or bool(arguments.get("validation_split")),
        arguments={
            **{name: _number_of(arguments.get(name, _EQUAL.get(name))) for name in numbers},
            "validation_freq": arguments.get("validation_freq", _EQUAL["validation_freq"]),
            "class_weight": _weights_of(arguments.get("class_weight")),
        },
        problem=_problem(arguments),
        splits=split_calls.take(),
        x=unsplit_summaries(arguments.get("x")),
        validation={} if is_shard else unsplit_summaries(validation),
        validates_shard=is_shard or any(map(split_calls.is_result, keras.tree.flatten(validation))),
        output_names=_output_names_of(fit.model),
        configuration=checksums,
        files=dataset_files.files_of(arguments.get("x")),
        validation_files=dataset_files.files_of(arguments.get("validation_data")),
        tables=[
            lookup_tables.checksums_of(arguments.get(name)) for name in ("x", "validation_data")
        ],
        numbers_may_differ=global_random.may_differ(arguments.get("x")),
        has_lost_variables=fit.has_lost_variables,
    )


def _number_of(value):
    """Returns a number or a tensor as an integer, `None` itself, and other values as texts."""
    try:
        return value if value is None else int(value)
    except (TypeError, ValueError):
        return repr(value)


def _weights_of(class_weight):
    """Returns the argument `class_weight` of `fit` as a dict of texts by class."""
    if not isinstance(class_weight, dict):
        return {}
    pairs = sorted((str(key), str(weight)) for key, weight in class_weight.items())
    return {key: _short(weight) for key, weight in pairs}


def _output_names_of(model):
    names = getattr(model, "output_names", None) or []
    return list(names) if len(names) > 1 else []


def unsplit_summaries(data):
    """Returns the summaries of data that `split_data` has not returned.

    Args:
        data: An argument of `fit` or `evaluate`: arrays in any structure, or a dataset.

    Returns:
        Dict of `summary.Summary`; empty if some of the data came from `split_data`, or are no
        arrays.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    if any(map(split_calls.is_result, leaves)):
        return {}  # a summary takes milliseconds
    summaries = [summary.of(leaf) for leaf in leaves]
    if None in summaries:
        return {}
    return {str(i): each for i, each in enumerate(summaries)}


def may_be_unsplit(data):
    """Returns whether data are a dataset or a generator that `split_data` has not returned.

    Args:
        data: The argument `x` of `fit`.
    """
    leaves = keras.tree.flatten(data)
    is_result = any(map(split_calls.is_result, leaves))
    return not is_result and any(summary.shape_of(each) is None for each in leaves)


def _problem(arguments):
    """Returns what is wrong with the lengths of this rank's arrays, or `None`."""
    lengths = {}
    for name in ("x", "y", "sample_weight"):
        lengths.update(_lengths(name, arguments.get(name)))
    _warn_of_steps(arguments, lengths.get("x", lengths.get("x[0]")))
    if not lengths:
        return None
    least, most = min(lengths, key=lengths.get), max(lengths, key=lengths.get)
    total, size = lengths[most], world.size()
    if least == most or lengths[least] not in (total // size, -(-total // size)):
        return None
    return (
        f"`{most}` of model.fit() has the samples of all ranks, and `{least}` those of this rank "
        "alone. Split them together, as in `x, y = ddl.split_data(x, y)`. Received: "
        + ", ".join(f"{name} with {length} samples" for name, length in lengths.items())
    )


def _lengths(name, data):
    """Returns the numbers of samples of an argument of `fit`, by a name of each of its arrays."""
    leaves = keras.tree.flatten(data)
    shapes = [getattr(leaf, "shape", None) for leaf in leaves]
    names = [name] if len(leaves) == 1 else [f"{name}[{i}]" for i in range(len(leaves))]
    known = [(each, shape) for each, shape in zip(names, shapes, strict=True) if shape]
    return {each: int(shape[0]) for each, shape in known if shape[0] is not None}


def _warn_of_steps(arguments, samples):
    steps, size = arguments.get("steps_per_epoch"), world.size()
    if steps is None:
        return
    if samples is None:
        batches = _batches_of(arguments.get("x"))
    else:
        batches = -(-samples // (arguments.get("batch_size") or 32))
    if batches is not None and batches < steps <= size * (batches + 1):
        notices.tell(
            "warning: `steps_per_epoch` of model.fit() counts the steps of one rank, whose data "
            f"have {batches} batches. Divide it by ddl.size(), or leave it out. "
            f"Received: steps_per_epoch={steps}"
        )


def _batches_of(dataset):
    """Returns the number of batches of a dataset or a loader; `None` if it is unknown."""
    if kinds.module_of(dataset) is None:
        return None
    try:
        return getattr(dataset, "num_batches", None) or len(dataset)
    # TensorFlow raises a TypeError, too, if a length is unknown or infinite.
    except (TypeError, NotImplementedError):
        return None


def _compare_arguments(by_rank):
    """Compares the arguments of `fit` that determine which epochs the ranks train and validate."""
    for name in _EQUAL:
        is_of_validation = name == "validation_freq"
        given = [
            repr(each.arguments[name]) if each.validates or not is_of_validation else None
            for each in by_rank
        ]
        if len(set(given) - {None}) > 1:
            raise settled_errors.settled(
                ValueError(
                    f"All ranks must pass the same `{name}` to model.fit(). Each rank runs the "
                    "script by itself: let one rank choose, by ddl.broadcast_object(). Received: "
                    f"{console.by_rank(given)}"
                )
            )


def _compare_steps(by_rank):
    """Names numbers of steps that differ by more than shards of the same data may differ."""
    given = [each.arguments["steps_per_epoch"] for each in by_rank]
    if _are_apart(given):
        notices.tell(
            "note: the ranks pass different `steps_per_epoch` to model.fit(), as for shards of "
            "different lengths. DDLCallback(uneven=...) sets what happens. If the shards have the "
            f"same length, pass the same number. Received: {console.by_rank(given)}"
        )
    validating = [each for each in by_rank if each.validates]
    given = [each.arguments["validation_steps"] if each.validates else "-" for each in by_rank]
    apart = _are_apart([each.arguments["validation_steps"] for each in validating])
    if apart and not any(each.validates_shard for each in validating):
        notices.tell(
            "warning: the ranks pass different `validation_steps` to model.fit(). The results are "
            "those of the samples of all ranks. Pass the same number, or if each rank evaluates "
            f'its own shard, DDLCallback(validation="split"). Received: {console.by_rank(given)}'
        )


def _are_apart(steps):
    given = [each for each in steps if isinstance(each, int)]
    return 0 < len(given) < len(steps) or (bool(given) and max(given) - min(given) > 1)


def _require_lengths(problems):
    failed = [rank for rank, each in enumerate(problems) if each is not None]
    if failed:
        mine = problems[world.rank()]
        text = mine or f"{problems[failed[0]]} (on rank {failed[0]})"
        raise settled_errors.settled(ValueError(text))


def _compare_splits(by_rank):
    """Compares the data that the ranks passed to the same calls of `split_data`."""
    common = set(by_rank[0]).intersection(*by_rank[1:])
    for call in [each for each in by_rank[0] if each in common]:
        calls = [each[call] for each in by_rank]
        place = f"split_data() in {call[0]}"
        options = [each.options for each in calls]
        if len(set(options)) > 1:
            raise settled_errors.settled(
                ValueError(
                    f"All ranks must pass the same arguments to {place}, or their shards overlap. "
                    f"Received: {console.by_rank(options)}"
                )
            )
        for path in calls[0].summaries:
            _compare_data(place, path, [each.summaries.get(path) for each in calls])


def _compare_data(place, path, by_rank):
    if None in by_rank:
        return
    found = summary.difference(by_rank)
    if found is None:
        return
    if found == "shapes":
        what, received = "shapes", console.by_rank([each.shape for each in by_rank])
    else:
        others = [rank for rank, each in enumerate(by_rank) if each != by_rank[0]]
        what = "contents"
        received = f"other values on {console.ranks(others)} than on rank 0"
    text = (
        f"The ranks passed {path} with different {what} to {place}, so that their shards are not "
        f"those of the same data. Pass all data on each rank, not a part that the script has "
        f"chosen by its rank. {_ADVICE} If it is meant, pass compare=False. Received: "
        f"{received}"
    )
    if found == "floats":
        notices.tell(f"warning: {text}")
    else:
        raise settled_errors.settled(ValueError(text))


def _compare_configurations(by_rank, sections):
    """Compares the ranks' configurations, of which each rank has received the checksums."""
    names = {name: None for each in by_rank for name in each}
    differing = [name for name in names if len({each.get(name) for each in by_rank}) > 1]
    if not differing:
        return
    everyones = objects.allgather_object({each: sections.get(each) for each in differing})
    rates, found = {}, {kind: {} for kind in configuration.KINDS}
    for kind, name in differing:
        is_required = kind == configuration.REQUIRED
        of_ranks = [each[kind, name] for each in everyones]
        for path, values in _differences(of_ranks).items():
            is_rate = is_required and configuration.is_rate(path) and all(map(_is_number, values))
            some = rates if is_rate else found[kind]
            some[f"{name}: {path}"] = console.by_rank(map(_shown, values))
    if rates:
        notices.tell(
            "warning: the ranks pass different learning rates. DDLGlobalVariablesCallback gives "
            f"all ranks that of the root. {_ADVICE} Received: {_first(rates)}"
        )
    if found[configuration.LAYERS]:
        notices.tell(
            "warning: the ranks' layers are configured differently, and train together. "
            f"{_ADVICE} Received: {_first(found[configuration.LAYERS])}"
        )
    # A configuration may state what an attribute keeps, too.
    stated = {*found[configuration.LAYERS], *found[configuration.REQUIRED]}
    kept = {name: each for name, each in found[configuration.KEPT].items() if name not in stated}
    if kept:
        notices.tell_once(
            ("kept", *kept),
            "warning: attributes of the script's own objects, or variables that its functions use, "
            "differ between the ranks. If they change what is computed, pass the same on all "
            f"ranks. {_ADVICE} Received: {_first(kept)}",
        )
    if found[configuration.REQUIRED]:
        raise settled_errors.settled(
            ValueError(
                "All ranks must configure the model in the same way, or their weights part. "
                f"{_ADVICE} Received: {_first(found[configuration.REQUIRED])}"
            )
        )


def _first(differing):
    return console.first([f"{name} is {values}" for name, values in differing.items()], "; and ")


def _differences(sections):
    """Returns the values by rank of what differs between the ranks' versions of a section."""
    if None in sections:
        return {"it": ["absent" if each is None else "there" for each in sections]}
    paths = {path: None for each in sections for path in each}
    values = {path: [each.get(path, "absent") for each in sections] for path in paths}
    return {path: each for path, each in values.items() if len(set(each)) > 1}


def _shown(text):
    """Returns a text for a message. Texts that differ also differ in a message."""
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}... (checksum {zlib.crc32(text.encode()):08x})"


def _short(text):
    """Returns a class weight without the digits in which rounding may differ."""
    return f"{float(text):.6g}" if _is_number(text) else text


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _compare_class_weights(by_rank):
    differing = _differences(by_rank)
    if differing:
        found = [f"class {key}: {console.by_rank(each)}" for key, each in differing.items()]
        notices.tell(
            "warning: `class_weight` of model.fit() differs between the ranks, so that their "
            "losses differ. Compute it from all data, before split_data. Received: "
            f"{console.first(found, '; and ')}"
        )


def _compare_output_names(by_rank):
    """Names outputs that each rank calls by another name, as by numbers of layers."""
    if any(each != by_rank[0] for each in by_rank):
        notices.tell(
            "warning: the model's outputs have other names on each rank, and so have the entries "
            "of its logs. Keras numbers the layers that a process makes: pass `name` to the "
            "layers of the outputs, or make the same models on all ranks. Received: "
            f"{console.by_rank(map(', '.join, by_rank))}"
        )


def _compare_tables(by_rank):
    """Compares the lookup tables that the ranks use in one of the datasets of a fit."""
    if len({len(each) for each in by_rank}) > 1:
        return  # a rank without validation data has none
    for everyones in zip(*by_rank, strict=True):
        if len(set(everyones)) > 1:
            received = console.by_rank([f"{size} entries" for size, _ in everyones])
            notices.tell(
                "warning: the ranks' datasets look up values in different tables, as those of "
                "`TextVectorization` and `StringLookup`, so that a number has another meaning on "
                "each rank. Call adapt() on all data, before split_data(), or pass the vocabulary "
                f"of one rank to all, by ddl.broadcast_object(). Received: {received}"
            )


def _compare_files(by_rank):
    """Compares the files that the ranks' datasets read and write themselves."""
    everyones = [[*each.files, *each.validation_files] for each in by_rank]
    problem = dataset_files.problem_of(everyones)
    if problem is not None:
        raise settled_errors.settled(ValueError(problem))
    paths = dataset_files.unsplit_loads([each.files for each in by_rank])
    if paths:
        notices.tell_once(("load", *paths), dataset_files.warning_of(paths))


def _compare_validation(by_rank):
    """Warns of validation data that cannot be all ranks' shards of the same data."""
    if not all(by_rank):
        return
    lengths = [next(iter(each.values())).shape[0] for each in by_rank]
    if max(lengths) - min(lengths) > 1:
        notices.tell_once(
            "validation data",
            "warning: the ranks pass different `validation_data` to model.fit(). The results are "
            f"those of the samples of all ranks. {_ADVICE} If each rank evaluates its own shard, "
            'pass DDLCallback(validation="split"). Received, in samples: '
            f"{console.by_rank(lengths)}",
        )
