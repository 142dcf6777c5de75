"""Reads the graph of a `tf.data.Dataset`, by private names of tf.data."""

import tensorflow as tf


def inputs_of(dataset):
    """Returns a list of the dataset and all datasets inside of it."""
    found = [dataset]
    for inner in direct_inputs_of(dataset):
        found.extend(inputs_of(inner))
    return found


def direct_inputs_of(dataset):
    """Returns the datasets from which a dataset takes its elements.

    A dataset that a function captures has no place among the inputs that TensorFlow returns.
    `split_data` sets the attribute `unsplit` where it makes such a dataset.
    """
    unsplit = getattr(dataset, "unsplit", None)
    return [*dataset._inputs(), *([] if unsplit is None else [unsplit])]


def operations_of(dataset):
    """Returns the operations of a dataset's own functions, and of the functions that these call."""
    graphs = [function.function.graph for function in dataset._functions()]
    return [op for graph in graphs for op in _operations_in(graph)]


def _operations_in(graph):
    # A graph lists all functions that it needs, also those that these call themselves.
    called = getattr(graph, "_functions", {}).values()
    graphs = [graph, *(each.graph for each in called if hasattr(each, "graph"))]
    return [op for each in graphs for op in each.get_operations()]


def captured_by(dataset):
    """Returns the tensors that functions of a dataset and of datasets inside it have captured."""
    functions = [each.function for inner in inputs_of(dataset) for each in inner._functions()]
    return [tensor for function in functions for tensor in function.captured_inputs]


def constant(tensor):
    """Returns the value of a constant of a graph; `None` if it is no constant."""
    value = tf.get_static_value(tensor)
    return None if value is None else value.item() if hasattr(value, "item") else value


def is_sharded(dataset):
    """Returns whether a dataset takes every n-th element, as the result of `split_data` does."""
    return type(dataset).__name__ == "_ShardDataset" or any(
        op.type == "ShardDataset" for op in operations_of(dataset)
    )


def calls_python(dataset):
    """Returns whether Python functions take part in making the elements of a dataset."""
    inputs = inputs_of(dataset)
    return any("PyFunc" in op.type for each in inputs for op in operations_of(each))


# The types of keys and values of the tables of Keras's layers.
_TABLES = ((tf.string, tf.int64), (tf.int64, tf.int64), (tf.int64, tf.string))


def content_of_table(handle):
    """Returns the keys and the values of a lookup table, as arrays.

    Args:
        handle: A tensor that a function has captured.

    Returns:
        Pair of arrays; `None` if the tensor is no handle of a table.
    """
    if handle.dtype != tf.resource or not hasattr(handle, "numpy"):
        return None
    for keys, values in _TABLES:
        none, default = tf.zeros([0], keys), tf.zeros([], values)
        try:
            # An export checks no types: with others it ends the process.
            tf.raw_ops.LookupTableFindV2(table_handle=handle, keys=none, default_value=default)
            found = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
        except tf.errors.OpError:  # a variable, or a table of other types
            continue
        return found[0].numpy(), found[1].numpy()
    return None
