"""The state of layers that Keras does not track, because the framework holds it."""

import dataclasses


@dataclasses.dataclass
class UntrackedState:
    """The state of a layer that is no Keras variable, grouped by how ranks synchronize it.

    Each item has the attributes `name`, `path`, `shape`, `dtype` and `value`, and the methods
    `numpy` and `assign`, of a Keras variable. Every call of `Backend.untracked_state` returns the
    same objects.

    Attributes:
        statistics: List. Running statistics of batch normalization, as floating-point numbers.
        counters: List. Numbers of batches that the statistics contain.
        others: List. State of any other kind.
        caches: List. What a module computes from its configuration and does not save.
    """

    statistics: list = dataclasses.field(default_factory=list)
    counters: list = dataclasses.field(default_factory=list)
    others: list = dataclasses.field(default_factory=list)
    caches: list = dataclasses.field(default_factory=list)
