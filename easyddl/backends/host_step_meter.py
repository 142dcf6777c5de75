"""What steps have taken, counted on the host."""

import keras


class HostStepMeter:
    """Counts the batches that training steps take.

    Attributes:
        samples: How many samples they have taken.
        steps: How many steps that were.
    """

    def __init__(self):
        self.samples = self.steps = 0

    def count(self, batch):
        """Counts a step that takes a batch: its samples are as many as its first array is long."""
        arrays = (x for x in keras.tree.flatten(batch) if getattr(x, "ndim", 0) > 0)
        self.samples += next((x.shape[0] for x in arrays), 0)
        self.steps += 1
