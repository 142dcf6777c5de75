"""A counter of training steps, for backends whose steps get their batch on the host."""

import keras


class HostStepMeter:
    """Counts training steps and their samples.

    Attributes:
        samples: Integer. The number of samples so far.
        steps: Integer. The number of steps so far.
    """

    def __init__(self):
        self.samples = self.steps = 0

    def count(self, batch):
        """Counts a step.

        Args:
            batch: Nested arrays. The length of the first array is the number of samples.
        """
        arrays = (x for x in keras.tree.flatten(batch) if getattr(x, "ndim", 0) > 0)
        self.samples += next((x.shape[0] for x in arrays), 0)
        self.steps += 1
