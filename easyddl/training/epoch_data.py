"""Keras's iterator over the data of a fit, of which it tells no callback."""

import queue

from easyddl.compat import patches


class EpochData:
    """The data that one fit takes its steps from."""

    def __init__(self):
        self._iterator = None

    def watch(self, model):
        """Notes the iterator that Keras makes, and offers to what builds a model by a batch.

        Args:
            model: A Keras model, whose fit has not begun.

        Returns:
            Function that takes that back.
        """
        name = next(n for n in ("_maybe_symbolic_build", "_symbolic_build") if hasattr(model, n))
        original = getattr(model, name)

        def build(iterator=None, data_batch=None):
            self._iterator = self._iterator or iterator  # later ones are a validation's
            return original(iterator, data_batch)

        restore = patches.replace(model, name, build)

        def take_back():
            restore()
            self._iterator = None  # which has threads

        return take_back

    def end_epoch(self):
        """Ends an epoch in the middle of which Keras has left a `PyDataset`.

        Keras does so where training stops, and does not expect another epoch then.
        """
        adapter = self._iterator.data_adapter
        if not getattr(adapter, "_within_epoch", False):
            return
        adapter.on_epoch_end()
        # With a number of steps an epoch, the next one goes on where this one was.
        if adapter.enqueuer is not None and self._iterator.steps_per_epoch is None:
            _drop(adapter.enqueuer.ready_queue)


def _drop(batches):
    """Drops what workers have read ahead, with which Keras would begin the next epoch."""
    while True:
        try:
            batches.get_nowait()
        except queue.Empty:
            return
