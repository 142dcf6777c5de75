"""A list of gradients that all ranks have registered, and exchange at every step."""

import functools
import math
import os
import re
import time

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arrays
from easyddl.reducer import bucket_size, buckets
from easyddl.reducer.ways import Way
from easyddl.runtime import world

_VARIABLE = "EASYDDL_BUCKET_BYTES"


class Exchange:
    """The way of one list of gradients over all ranks.

    All ranks must make it together. The names, shapes and dtypes are compared then, once; a
    step negotiates nothing.

    Args:
        grads: List of gradients, `None` where there is none.
        variables: The variables they belong to.
        bucket_bytes: Integer, or `None` for a size that is measured.
        sparse_as_dense: Boolean. Whether sparse gradients travel as dense ones, and not by rows.

    Raises:
        RuntimeError: On all ranks, if they differ in a gradient, in the bucket size, or in
            `sparse_as_dense`.
    """

    def __init__(self, grads, variables, bucket_bytes=None, sparse_as_dense=False):
        specs = [_spec(*pair) for pair in zip(grads, variables, strict=True)]
        names = [variable.name for variable in variables]
        size = bucket_bytes or "measured size"
        rows = ", sparse ones as dense" if sparse_as_dense else ""
        self._specs = specs
        self._names = names
        self._variables = variables
        self._sparse_as_dense = sparse_as_dense
        self._way = None
        with world.taking_part("The registration of gradients"):
            world.agree(
                f"the exchange of gradients of ({_listed(names, specs)}) in buckets of {size}{rows}"
            )
            # Where some ranks have a gradient and others none, these take part with zeros, so
            # that all ranks change the same variables. Where some have rows and others a dense
            # one, all take part with dense ones.
            mine = np.array([self._kinds(grad) for grad in grads], np.uint8).reshape(-1, 2)
            dense, sparse = arrays.allreduce(mine, "max").T
            self._indices = np.flatnonzero(dense | sparse).tolist()
            self._sparse = np.flatnonzero(sparse > dense).tolist()
            if self._indices:
                self._open(bucket_bytes or measured_bucket_bytes())

    def _kinds(self, grad):
        """Whether a rank has a gradient that is dense, and whether it has one that is sparse."""
        is_sparse = not self._sparse_as_dense and backends.require().has_rows(grad)
        return grad is not None and not is_sparse, is_sparse

    def _open(self, bucket_bytes):
        specs = [self._specs[i] for i in self._indices]
        sizes = [_bytes(spec) for spec in specs]
        dtypes = [dtype for dtype, _ in specs]
        tables = {self._indices.index(i): self._path(i) for i in self._sparse}
        dense = [i for i in range(len(specs)) if i not in tables]
        plan = buckets.plan([sizes[i] for i in dense], [dtypes[i] for i in dense], bucket_bytes)
        plan = [[dense[i] for i in bucket] for bucket in plan]
        what = f"the exchange of {len(specs)} gradients ({self._names[self._indices[0]]} and on)"
        shapes = [shape for _, shape in specs]
        self._way = Way(what, plan, sizes, dtypes, shapes, tables=tables)

    def watch(self, weight):
        """Has gradients set off before `mean` is called, where the backend can tell of them.

        Args:
            weight: Function without arguments: what will be passed to `mean`.
        """
        if self._way is not None:
            self._way.watch([self._variables[i] for i in self._indices], weight)

    def unwatch(self):
        """Ends what `watch` has begun."""
        if self._way is not None:
            self._way.unwatch()

    def take_part(self):
        """Tells the fit under way that its steps go this way, whether or not this one does."""
        if self._way is not None:
            self._way.take_part()

    def mean(self, grads, weight=None):
        """The mean of each gradient over all ranks.

        Args:
            grads: List of gradients, `None` where there is none.
            weight: Scalar tensor: what this rank's gradients count for beside the others', such
                as its number of samples; `PLAIN` for gradients of a sum over samples. `None`
                where nothing is known: all ranks that train then count alike.

        Returns:
            List of the same length; `None` where no rank has had a gradient at registration.
        """
        for i, grad in enumerate(grads):
            if grad is not None and i not in self._indices:
                raise RuntimeError(
                    f"The gradient of {self._names[i]!r} is new: no rank had it when the ranks "
                    "registered the gradients that they exchange. Train such a variable from "
                    "the first step on, or in a fit (or with an optimizer) of its own."
                )
        if self._way is None:
            return grads
        present = [
            self._stand_in(i) if grads[i] is None else self._as_registered(grads[i])
            for i in self._indices
        ]
        result = list(grads)
        for i, mean in zip(self._indices, self._way.reduce(present, weight), strict=True):
            result[i] = mean
        return result

    def _path(self, i):
        return getattr(self._variables[i], "path", self._names[i])

    def _stand_in(self, i):
        """What this rank takes part with for a gradient that others have."""
        return (self._way.no_rows if i in self._sparse else self._way.zeros)(*self._specs[i])

    def _as_registered(self, grad):
        return backends.require().to_dense(grad) if self._sparse_as_dense else grad

    def close(self):
        """Ends it, and gives back the engine's memory."""
        if self._way is not None:
            self._way.close()


def _spec(grad, variable):
    holder = variable if grad is None else grad
    return keras.backend.standardize_dtype(holder.dtype), tuple(variable.shape)


def _bytes(spec):
    dtype, shape = spec
    return math.prod(shape) * int(re.sub(r"\D", "", dtype)) // 8


def _listed(names, specs):
    """The gradients in words, for the ranks to compare.

    Not by `variable.path`: it holds numbers that count the models made before, which may
    differ by rank.
    """
    pairs = zip(names, specs, strict=True)
    return ", ".join(f"{i} {name} {s[0]}{s[1]}" for i, (name, s) in enumerate(pairs))


def requested_bucket_bytes(bucket_bytes):
    """What the user asks for: an argument, else the environment's, else `None`."""
    if bucket_bytes is not None:
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(
                "`bucket_bytes` must be a positive integer, or None for a size that easyddl "
                f"measures. Received: bucket_bytes={bucket_bytes!r}"
            )
        return bucket_bytes
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{_VARIABLE} must be a positive number of bytes. Received: {text!r}")
    return int(text)


def requested_sparse_as_dense(sparse_as_dense):
    """What the user asks for, if it can be asked for."""
    if not isinstance(sparse_as_dense, bool):
        raise ValueError(
            "`sparse_as_dense` must be True or False. "
            f"Received: sparse_as_dense={sparse_as_dense!r}"
        )
    return sparse_as_dense


@functools.cache
def measured_bucket_bytes():
    """The bucket size that follows from the cost of this job's collectives.

    Measured once, by all ranks together; the root's figure is everyone's.
    """
    small, large = 16 << 10, 1 << 20
    latency = _seconds(small)
    per_byte = (_seconds(large) - latency) / (large - small)
    mine = np.array(bucket_size.bucket_bytes(latency, per_byte), np.int64)
    return int(arrays.broadcast(mine))


def _seconds(size, rounds=5):
    """The least time of an allreduce of so many bytes, of a few."""
    data = np.ones(size // 4, np.float32)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        arrays.allreduce(data, "sum")
        times.append(time.perf_counter() - start)
    return min(times)
