"""Rows of sparse gradients that all samples of a batch share, and their sums over all ranks.

The gradient of an `Embedding` of words has a row for each word of each sample. The rows of all
ranks, taken together, are the rows that one process would have. The gradient of an `Embedding`
that is called with `ops.arange(length)` has a row for each position. This row is a sum over all
samples, and one process has it once. With several ranks each rank has a part of the sum, so the
parts must be added up. Otherwise an optimizer that squares the rows would take too large a step.

The graph of the step distinguishes the two kinds. A row is shared if its index depends neither on
the data of the batch nor on the number of samples. In case of doubt a row is not shared.
"""

import math

import numpy as np
import tensorflow as tf

from easyddl.backends.tensorflow import step

# Operations that read the shape of a tensor, but not its values.
_SHAPE_ONLY = ("Shape", "ShapeN", "Size", "Rank")
# Stateful operations that read a variable.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp")
# Operations that change values or drop entries of a tensor, but keep the order of its axes.
_KEEP_AXES = ("Cast", "Identity", "StridedSlice")

# Substitutes for unknown lengths when indices are computed to find what they depend on.
_SAMPLES = (2, 3)
_LENGTH = 5

# Larger than the number of rows of any table.
_STRIDE = 2**36


def parts_of(indices):
    """Returns the parts of a sparse gradient's indices, which TensorFlow may have concatenated.

    It concatenates the sparse gradients of a variable that is used several times, for example for
    words and for positions.
    """
    if not step.is_symbolic(indices) or indices.op.type != "ConcatV2":
        return [indices]
    *parts, _ = indices.op.inputs
    return [leaf for part in parts for leaf in parts_of(part)]


def are_shared(indices):
    """Finds the parts of a sparse gradient whose rows are shared, as far as its graph shows.

    Args:
        indices: Integer tensor. The indices of a `tf.IndexedSlices`.

    Returns:
        List of booleans, one for each tensor in `parts_of(indices)`.
    """
    parts = parts_of(indices)
    if not step.is_symbolic(indices):
        return [False] * len(parts)
    graph = _StepGraph(indices.graph)
    return [graph.is_shared(part) for part in parts]


def split(slices, agreed):
    """Splits a sparse gradient into the rows of samples and the shared rows.

    Args:
        slices: `tf.IndexedSlices`.
        agreed: List of booleans. Whether all ranks found each part to be shared at registration.
            If the gradient has another number of parts now, none of its rows is shared.

    Returns:
        Two pairs: the indices and the values of the rows of samples, and the numbers and the values
        of shared rows. `added_up` converts the numbers back to indices.
    """
    parts, shared = parts_of(slices.indices), are_shared(slices.indices)
    if len(agreed) != len(shared):
        agreed = [False] * len(shared)
    values = tf.split(slices.values, tf.stack([tf.size(part) for part in parts]))
    of_samples, of_all = [(slices.indices[:0], slices.values[:0])], []
    for place, part in enumerate(zip(parts, values, strict=True)):
        if shared[place] and agreed[place]:
            of_all.append(_with_numbers(*part, place, len(parts)))
        else:
            of_samples.append(part)
    of_all = of_all or [(tf.zeros([0], tf.int64), slices.values[:0])]
    return _joined(of_samples), _joined(of_all)


def _joined(pairs):
    return tuple(tf.concat(each, 0) for each in zip(*pairs, strict=True))


def _with_numbers(indices, values, place, parts):
    """Replaces the indices of shared rows by numbers that are unique on this rank.

    If an index occurs several times on one process, its rows must stay separate. So the n-th row
    of an index in a part gets the same number as the n-th row of this index in this part on every
    other rank. Ranks may have different numbers of rows.

    Args:
        indices: Integer tensor. The indices of one part.
        values: Tensor. The rows of this part.
        place: Integer. The number of this part.
        parts: Integer. How many parts the gradient has.

    Returns:
        Pair of int64 numbers and values.
    """
    indices = tf.cast(indices, tf.int64)
    order = tf.argsort(indices, stable=True)
    indices = tf.gather(indices, order)
    earlier = tf.range(tf.size(indices)) - tf.searchsorted(indices, indices)
    kind = tf.cast(earlier, tf.int64) * parts + place
    return indices + _STRIDE * kind, tf.gather(values, order)


def added_up(numbers, values):
    """Adds up the rows of all ranks that have the same number.

    Args:
        numbers: Integer tensor. The numbers of shared rows from `split`, of all ranks.
        values: Tensor. The rows, multiplied by the weights of the ranks' batches.

    Returns:
        Pair of indices and values.
    """
    numbers, places = tf.unique(numbers)
    wide = tf.float32 if values.dtype.size < 4 else values.dtype
    sums = tf.math.unsorted_segment_sum(tf.cast(values, wide), places, tf.size(numbers))
    return tf.math.floormod(numbers, _STRIDE), tf.cast(sums, values.dtype)


class _StepGraph:
    """The graph of a step. It knows which of its operations depend on the batch.

    Args:
        graph: `tf.Graph` in which gradients have been computed.
    """

    def __init__(self, graph):
        self._graph = graph
        self._captured = _captured_values(graph)
        operations = [op for op in step.batch_operations(graph) if not self._is_captured(op)]
        self._batch = [x for op in operations for x in op.outputs if x.shape.rank != 0]
        self._dependent = self._find_dependent()

    def is_shared(self, indices):
        """Returns whether indices depend neither on the batch nor on its number of samples."""
        # If no input brings in a batch, any constant of the graph may be the batch.
        if not self._batch or id(indices.op) in self._dependent:
            return False
        try:
            first, second = (self._evaluate(indices, samples) for samples in _SAMPLES)
        except (ValueError, tf.errors.OpError):
            return False
        return np.array_equal(first, second) and not self._is_repeated_for_samples(first)

    def _is_captured(self, op):
        return any(x.ref() in self._captured for x in op.outputs)

    def _find_dependent(self):
        """Returns the ids of the operations whose results may depend on the batch."""
        operations = self._graph.get_operations()  # in topological order
        written = {
            x.ref()
            for op in operations
            if op.op_def.is_stateful and op.type not in _READS
            for x in op.inputs
        }
        found = set()
        for op in operations:
            inputs = list(op.inputs)
            if op.type in _SHAPE_ONLY:
                continue
            if (
                self._is_in_doubt(op)
                or any(id(x.op) in found for x in inputs)
                or (op.type in _READS and any(x.ref() in written for x in inputs))
            ):
                found.add(id(op))
        return found

    def _is_in_doubt(self, op):
        """Returns whether an operation may bring in the batch, or other data that ranks differ in.

        These are inputs, iterators, random numbers, queues, Python functions, and operations that
        call another TensorFlow function.
        """
        if op.type.startswith("Placeholder"):
            return not self._is_captured(op)
        calls = any(attribute.type in ("func", "list(func)") for attribute in op.op_def.attr)
        return calls or (op.op_def.is_stateful and op.type not in _READS)

    def _evaluate(self, tensor, samples):
        """Returns the values that a tensor would have if the batch had `samples` samples."""
        nodes, known = {}, {}
        waiting = [tensor]
        while waiting:
            each = waiting.pop()
            if each.ref() in self._captured:
                known[each.name] = self._captured[each.ref()]
            elif self._is_size_of_batch(each.op):
                known[each.name] = np.array(self._size(each, samples), each.dtype.as_numpy_dtype)
            elif each.op.name not in nodes:
                nodes[each.op.name] = _node(each.op)
                waiting += each.op.inputs
        versions = self._graph.graph_def_versions
        definition = tf.compat.v1.GraphDef(node=nodes.values(), versions=versions)

        def imported():
            inputs = {name: tf.convert_to_tensor(value) for name, value in known.items()}
            if tensor.name in inputs:
                return [inputs[tensor.name]]
            return tf.graph_util.import_graph_def(definition, inputs, [tensor.name])

        with tf.init_scope():
            return tf.compat.v1.wrap_function(imported, [])()[0].numpy()

    def _is_size_of_batch(self, op):
        return op.type in _SHAPE_ONLY and any(id(x.op) in self._dependent for x in op.inputs)

    def _size(self, output, samples):
        """Returns the result of an operation that reads the shape of a tensor."""
        of = output.op.inputs[output.value_index]
        keeps_axes = self._keeps_axes(of)
        shape = [
            length if length is not None else (_LENGTH if axis > 0 and keeps_axes else samples)
            for axis, length in enumerate(of.shape.as_list())
        ]
        return {"Size": math.prod(shape), "Rank": len(shape)}.get(output.op.type, shape)

    def _keeps_axes(self, tensor):
        """Returns whether a tensor's first axis, and no other, is certain to count samples.

        The axes of an activation may have been transposed or merged.
        """
        batch = {x.ref() for x in self._batch}
        while tensor.ref() not in batch:
            inputs = tensor.op.inputs
            if tensor.op.type not in _KEEP_AXES or inputs[0].shape.rank != tensor.shape.rank:
                return False
            tensor = inputs[0]
        return True

    def _is_repeated_for_samples(self, indices):
        """Returns whether constant indices may repeat the same values for each sample.

        If the number of samples is known at tracing, the graph does not show what depends on it.
        """
        _, counts = np.unique(indices, return_counts=True)
        samples = {None if x.shape.rank is None else x.shape[0] for x in self._batch}
        if len(samples) > 1:
            samples.discard(1)  # the length of another argument
        return any(number and (counts % number == 0).all() for number in samples)


def _captured_values(graph):
    """Returns the values that a graph captured from outside of all functions, by its tensors."""
    pairs = [(internal, _outermost(external)) for external, internal in _captures(graph)]
    return {internal.ref(): value for internal, value in pairs if value is not None}


def _captures(graph):
    return getattr(graph, "captures", [])


def _outermost(tensor):
    """Returns the value of a captured tensor; `None` if an enclosing function computes it."""
    while step.is_symbolic(tensor):
        outside = {internal.ref(): external for external, internal in _captures(tensor.graph)}
        tensor = outside.get(tensor.ref())
    return tensor


def _node(op):
    """Returns the definition of an operation, without its device and its control inputs."""
    node = tf.compat.v1.NodeDef()
    node.CopyFrom(op.node_def)
    node.device = ""
    if "_class" in node.attr:
        del node.attr["_class"]
    data = [each for each in node.input if not each.startswith("^")]
    del node.input[:]
    node.input.extend(data)
    return node
