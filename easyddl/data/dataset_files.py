"""The files that a `tf.data.Dataset` reads and writes itself: of `cache` and `load`.

Each rank has its own elements. If all ranks pass the same path to `Dataset.cache` after the split,
they write one file at the same time, or all read the elements of the rank that has written it.
`Dataset.snapshot` needs nothing: TensorFlow gives each graph a separate directory.
"""

import dataclasses

from easyddl.data import kinds
from easyddl.runtime import console

_PATH = '`f"{path}-{ddl.rank()}-of-{ddl.size()}"`'


@dataclasses.dataclass(frozen=True)
class File:
    """A file of one rank's dataset.

    Attributes:
        call: String. `"cache"` or `"load"`.
        path: String, the argument of the call.
        is_split_after: Boolean. Whether the elements are split after this call, so that all ranks
            read the same from the file.
        is_complete: Boolean. Whether the file of a cache has already been written.
    """

    call: str
    path: str
    is_split_after: bool
    is_complete: bool


@kinds.reads_tf_dataset(otherwise=list)
def files_of(data, tf_graph):
    """Returns a list of the `File`s of the data of a fit; empty if these are no `tf.data.Dataset`.

    Args:
        data: An argument of `fit`.
        tf_graph: The module, which the decorator passes.
    """
    return list(_files_in(data, False, tf_graph))


def _files_in(dataset, is_split_after, tf_graph):
    for call, path in _calls_of(dataset, tf_graph):
        yield File(call, path, is_split_after, call == "cache" and _is_complete(path))
    is_split_after = is_split_after or tf_graph.is_sharded(dataset)
    for inner in tf_graph.direct_inputs_of(dataset):
        yield from _files_in(inner, is_split_after, tf_graph)


def _calls_of(dataset, tf_graph):
    """Yields what a dataset itself calls, and with which path."""
    names = [
        tf_graph.constant(op.inputs[1])
        for op in tf_graph.operations_of(dataset)
        if op.type == "CacheDatasetV2"
    ]
    if type(dataset).__name__ == "CacheDataset":
        names.append(tf_graph.constant(dataset._filename))
    for name in filter(None, names):
        yield "cache", name.decode() if isinstance(name, bytes) else str(name)
    if type(dataset).__name__ == "_LoadDataset":
        yield "load", str(dataset._path)


def _is_complete(path):
    import tensorflow as tf

    return tf.io.gfile.exists(f"{path}.index")  # TensorFlow writes it at the end


def problem_of(by_rank):
    """Returns what is wrong with the files that several ranks name, or `None`.

    Args:
        by_rank: List of lists of `File`, one list for each rank.
    """
    for path, those in _shared(by_rank, "cache").items():
        files = those.values()
        received = f"Received: cache({path!r}) on {console.ranks(list(those))}"
        if not all(each.is_split_after for each in files):
            return (
                "Ranks must not share the file of a cache of samples that are split: either all "
                "of them write it, or all read the samples of the rank that has written it. Put "
                f"the rank into its path, as in {_PATH}, or call cache() without a path. {received}"
            )
        if not all(each.is_complete for each in files):
            return (
                "Ranks must not write the file of one cache together. Put the rank into its path, "
                f"as in {_PATH}, or let one process read the whole dataset once before the job, "
                f"so that the file is there. {received}"
            )
    return None


def unsplit_loads(by_rank):
    """Returns the paths that several ranks load without splitting the elements after that.

    Args:
        by_rank: List of lists of `File`, one list for each rank.
    """
    return [
        path
        for path, those in _shared(by_rank, "load").items()
        if not any(each.is_split_after for each in those.values())
    ]


def warning_of(paths):
    """Returns the text of a warning of `unsplit_loads`."""
    return (
        f"warning: all ranks train on the elements of tf.data.Dataset.load({paths[0]!r}), which "
        "nothing has split. Call ddl.split_data() after load(). If each rank has saved its own "
        f"elements, each must save and load them by a separate path, as {_PATH}."
    )


def _shared(by_rank, call):
    """Returns the files of a call that several ranks name: dicts of `File` by rank, by path."""
    named = {}
    for rank, files in enumerate(by_rank):
        for each in files:
            if each.call == call:
                named.setdefault(each.path, {})[rank] = each
    return {path: those for path, those in named.items() if len(those) > 1}
