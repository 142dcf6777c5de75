"""The communicators of the active fits and evaluations of this rank."""

from easyddl.runtime import world
from easyddl.steps import context

# The exchange of the fits at each depth: a callback of a fit may train another model.
_by_depth: list["FitExchange"] = []

_START = "the start of a fit"  # for messages


class FitExchange:
    """The communicators of a fit or an evaluation. They break if a rank leaves it by an error.

    Then the ranks that still wait in it get an error that names that rank and its error. The
    communicators outside of it can still be used. Successive fits share one exchange if they end
    without an error.

    Attributes:
        own: `_core.Communicator` of what easyddl exchanges by itself.
        script: `_core.Communicator` of the collectives that the script calls, as in callbacks.
        reducer_group: `_core.ReducerGroup` of the reductions in the steps.
    """

    def __init__(self, outer):
        """Opens the communicators. Collective.

        Args:
            outer: `_core.Communicator` of the script outside of the fit.
        """
        self.own = outer.open_child("the communicator of a fit")
        self.script = self.own.open_child("the communicator of the callbacks of a fit")
        self.reducer_group = world.engine().reducer_group.over(self.own)

    @property
    def is_whole(self):
        """Whether the communicators can be used, as far as this rank knows."""
        return not (self.own.failure or self.script.failure)

    def close(self):
        """Frees this rank's memory. Later collectives of the communicators fail."""
        self.script.close()
        self.own.close()


@world.on_all_ranks(_START, of_script=True)
def open_communicators(active):
    """Opens the communicators of a fit or an evaluation, at its start.

    They are those of the last fit at the same depth, unless a rank left it by an error. This is a
    collective, because only the ranks together know whether one did.

    Args:
        active: `Context` of the fit or the evaluation. It gets the `FitExchange`.
    """
    depth = sum(each.exchange is not None for each in context.active())
    is_whole = depth < len(_by_depth) and _by_depth[depth].is_whole
    outer = world.communicator()
    at_start = world.fingerprint(f"{active.called} (at its start)")
    if not all(outer.gather_values(is_whole, at_start)):
        for replaced in _by_depth[depth:]:
            replaced.close()
        _by_depth[depth:] = [FitExchange(outer)]
    active.exchange = _by_depth[depth]


def give_up_start(error):
    """Ends `open_communicators` on the ranks that are in it, after an error before it on this one.

    Otherwise they would take this rank's next call for it.
    """
    world.give_up(_START, error, of_script=True)
