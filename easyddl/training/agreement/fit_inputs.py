"""What the ranks compare at the start of a fit: its arguments, its data and its configuration."""

import keras

from easyddl.collectives import differences
from easyddl.collectives.differences import SAME_ON_ALL_RANKS, Subject
from easyddl.compat import keras_callback
from easyddl.data import dataset_files, global_random, kinds, lookup_tables, split_calls, summary
from easyddl.runtime import console, notices, settled_errors, world
from easyddl.training.agreement import configuration
from easyddl.training.state import lost_variables

# The arguments of `fit` that must be equal on all ranks, with their defaults.
_EQUAL = {"epochs": 1, "initial_epoch": 0, "validation_freq": 1}

_SETTINGS = ("check_replicas", "uneven", "validation")  # attributes of DDLCallback


def _differ_by_more_than_one(steps):
    """Returns whether numbers of steps differ by more than for shards of the same data."""
    given = [each for each in steps if isinstance(each, int)]
    return 0 < len(given) < len(steps) or (bool(given) and max(given) - min(given) > 1)


def _differ_where_given(values):
    return not differences.are_equal([each for each in values if each is not None])


def _tables_differ(by_rank):
    lengths = {len(each) for each in by_rank}
    return len(lengths) == 1 and not differences.are_equal(by_rank)  # a rank may not validate


# A new subject is a row here, and its value in `_values_of`.
_SUBJECTS = {
    **{
        name: Subject(
            f"All ranks must pass the same `{name}` to model.fit(). Each rank runs the script by "
            "itself: let one rank choose, by ddl.broadcast_object().",
            is_error=True,
            differ=_differ_where_given,
        )
        for name in _EQUAL
    },
    **{
        name: Subject(f"All ranks must pass the same `{name}` to DDLCallback.", is_error=True)
        for name in _SETTINGS
    },
    "class_weight": Subject(
        "`class_weight` of model.fit() differs between the ranks, so that their losses differ. "
        "Compute it from all data, before split_data."
    ),
    **{
        name: Subject(
            "the ranks' datasets look up values in different tables, as those of "
            "`TextVectorization` and `StringLookup`, so that a number has another meaning on each "
            "rank. Call adapt() on all data, before split_data(), or pass the vocabulary of one "
            "rank to all, by ddl.broadcast_object().",
            differ=_tables_differ,
            show=lambda tables: f"{', '.join(str(size) for size, _ in tables)} entries",
        )
        for name in ("tables of x", "tables of validation_data")
    },
    "output names": Subject(
        "the model's outputs have other names on each rank, and so have the entries of its logs. "
        "Keras numbers the layers that a process makes: pass `name` to the layers of the outputs, "
        "or make the same models on all ranks.",
        show=", ".join,
    ),
}


def compare(fit, seed):
    """Compares what the ranks pass to a fit. Collective.

    Args:
        fit: `FitContext` of a fit that Keras has not started.
        seed: Integer. The seed of the order of arrays; `None` if the fit does not shuffle arrays.

    Returns:
        Dict of lists of the ranks' values: `"seed"`; `"validation_freq"`, `None` for ranks without
        validation data; `"numbers may differ"`, see `global_random.may_differ`; and `"waits for
        steps"`, see `keras_callback.waits_for_steps`.

    Raises:
        ValueError: On all ranks, if their data or configurations differ so that no broadcast makes
            them equal.
    """
    # The learning rate is a variable, too.
    sections = {} if fit.has_lost_variables else configuration.sections_of(fit.model)
    calls = split_calls.take(_leaves_of(fit.arguments))
    found = differences.gather(
        {
            "seed": seed,
            "lost variables": fit.has_lost_variables,
            "numbers may differ": global_random.may_differ(fit.arguments.get("x")),
            "waits for steps": any(map(keras_callback.waits_for_steps, fit.callbacks)),
            **_values_of(fit),
            **{("split", *key): call for key, call in calls.items()},
            **{("configuration", name): section for name, section in sections.items()},
        }
    )
    lost_variables.restore(fit.model, found["lost variables"])
    for name, subject in _SUBJECTS.items():
        if subject.is_error:
            subject.compare(found[name])
    _require_lengths(found["problem"])
    for those in split_calls.compared(_of_kind("split", found)):
        _compare_split(those)
    if not any(found["lost variables"]):
        of_sections = _of_kind("configuration", found)
        configuration.compare({name: each for (name,), each in of_sections.items()})
    for name, subject in _SUBJECTS.items():
        if not subject.is_error:
            subject.compare(found[name])
    _compare_steps(found)
    _compare_validation(found["validation data"])
    _compare_files(found["files of x"], found["files of validation_data"])
    if summary.are_equal(found["unsplit data"]):
        notices.tell_once(
            "the same x",
            f"warning: all {world.size()} ranks pass the same x to model.fit(), and train on the "
            "same samples. Split the data before, by ddl.split_data(x, y).",
        )
    return found


def _of_kind(kind, found):
    return {key[1:]: each for key, each in found.items() if key[0] == kind}


def _leaves_of(arguments):
    return keras.tree.flatten([arguments.get(name) for name in ("x", "y", "sample_weight")])


def _values_of(fit):
    """Returns this rank's values of `_SUBJECTS`, and of what is compared below."""
    arguments = fit.arguments
    validation = arguments.get("validation_data")
    validates = validation is not None or bool(arguments.get("validation_split"))
    is_shard = fit.first.validation == "split"
    leaves = keras.tree.flatten(validation)
    return {
        "epochs": _number_of(arguments.get("epochs", _EQUAL["epochs"])),
        "initial_epoch": _number_of(arguments.get("initial_epoch", _EQUAL["initial_epoch"])),
        "validation_freq": arguments.get("validation_freq", 1) if validates else None,
        **{name: getattr(fit.first, name) for name in _SETTINGS},
        "class_weight": _weights_of(arguments.get("class_weight")),
        "tables of x": lookup_tables.checksums_of(arguments.get("x")),
        "tables of validation_data": lookup_tables.checksums_of(validation),
        "output names": _output_names_of(fit.model),
        "problem": _problem(arguments),
        "steps_per_epoch": _number_of(arguments.get("steps_per_epoch")),
        "validation_steps": _number_of(arguments.get("validation_steps")) if validates else "-",
        "validates a shard": is_shard or any(map(split_calls.is_result, leaves)),
        "validation data": {} if is_shard else split_calls.unsplit_summaries(leaves),
        "files of x": dataset_files.files_of(arguments.get("x")),
        "files of validation_data": dataset_files.files_of(validation),
        "unsplit data": split_calls.unsplit_summaries(_leaves_of(arguments)),
    }


def _number_of(value):
    """Returns a number or a tensor as an integer, `None` itself, and other values as texts."""
    try:
        return value if value is None else int(value)
    except (TypeError, ValueError):
        return repr(value)


def _weights_of(class_weight):
    """Returns the argument `class_weight` of `fit` as a dict of numbers by the text of a class."""
    if not isinstance(class_weight, dict):
        return {}
    return {str(key): float(weight) for key, weight in class_weight.items()}


def _output_names_of(model):
    names = getattr(model, "output_names", None) or []
    return list(names) if len(names) > 1 else []


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
    elif arguments.get("batch_size") is None:  # Keras makes that many batches of the arrays
        batches = None
    else:
        batches = -(-samples // arguments["batch_size"])
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


def _require_lengths(problems):
    failed = [rank for rank, each in enumerate(problems) if each is not None]
    if failed:
        mine = problems[world.rank()]
        text = mine or f"{problems[failed[0]]} (on rank {failed[0]})"
        raise settled_errors.settled(ValueError(text))


def _compare_split(calls):
    """Compares the data that the ranks passed to one call of `split_data`."""
    place = f"split_data() in {calls[0].place}"
    options = [each.options for each in calls]
    if len(set(options)) > 1:
        differences.tell(
            f"All ranks must pass the same arguments to {place}, otherwise their shards overlap. "
            f"Received: {console.by_rank(options)}",
            is_error=True,
        )
    for path in calls[0].summaries:
        _compare_data(place, path, [each.summaries.get(path) for each in calls])
    for path in calls[0].attributes:
        of_ranks = [each.attributes.get(path) for each in calls]
        _compare_data(place, path, of_ranks, is_sure=False)


def _compare_data(place, path, by_rank, is_sure=True):
    found = None if None in by_rank else summary.difference(by_rank)
    if found is None:
        return
    if found == "shapes":
        what, received = "shapes", console.by_rank([each.shape for each in by_rank])
    else:
        others = [rank for rank, each in enumerate(by_rank) if each != by_rank[0]]
        what = "contents"
        received = f"other values on {console.ranks(others)} than on rank 0"
    differences.tell(
        f"The ranks passed {path} with different {what} to {place}, so that their shards are not "
        f"those of the same data. Pass all data on each rank, not a part that the script has "
        f"chosen by its rank. {SAME_ON_ALL_RANKS} If it is meant, pass compare=False. Received: "
        f"{received}",
        is_error=is_sure and found != "floats",
    )


def _compare_steps(found):
    """Names numbers of steps that differ by more than shards of the same data may differ."""
    given = found["steps_per_epoch"]
    if _differ_by_more_than_one(given):
        notices.tell(
            "note: the ranks pass different `steps_per_epoch` to model.fit(), as for shards of "
            "different lengths. DDLCallback(uneven=...) sets what happens. If the shards have the "
            f"same length, pass the same number. Received: {console.by_rank(given)}"
        )
    given = found["validation_steps"]
    of_validating = [each for each in given if each != "-"]
    if _differ_by_more_than_one(of_validating) and not any(found["validates a shard"]):
        notices.tell(
            "warning: the ranks pass different `validation_steps` to model.fit(). The results are "
            "those of the samples of all ranks. Pass the same number, or if each rank evaluates "
            f'its own shard, DDLCallback(validation="split"). Received: {console.by_rank(given)}'
        )


def _compare_validation(by_rank):
    """Warns of validation data that cannot be all ranks' shards of the same data."""
    if not all(by_rank):
        return
    lengths = [next(iter(each.values())).shape[0] for each in by_rank]
    if max(lengths) - min(lengths) > 1:
        notices.tell_once(
            "validation data",
            "warning: the ranks pass different `validation_data` to model.fit(). The results are "
            f"those of the samples of all ranks. {SAME_ON_ALL_RANKS} If each rank evaluates its "
            'own shard, pass DDLCallback(validation="split"). Received, in samples: '
            f"{console.by_rank(lengths)}",
        )


def _compare_files(of_x, of_validation):
    """Compares the files that the ranks' datasets read and write themselves."""
    problem = dataset_files.problem_of([[*x, *v] for x, v in zip(of_x, of_validation, strict=True)])
    if problem is not None:
        raise settled_errors.settled(ValueError(problem))
    paths = dataset_files.unsplit_loads(of_x)
    if paths:
        notices.tell_once(("load", *paths), dataset_files.warning_of(paths))
