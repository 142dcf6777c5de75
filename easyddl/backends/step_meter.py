"""A counter of training steps and their samples."""

import functools

import keras


class StepMeter:
    """Counts training steps and their samples, on the host.

    Attributes:
        samples: Integer. The number of samples so far.
        steps: Integer. The number of steps so far.
    """

    def __init__(self):
        self.samples = self.steps = 0

    def watch(self, fit):
        """Starts counting the steps of a fit. Call it in a callback's `set_model`."""
        fit.wrap_train_step(self._counted)

    def _counted(self, train_step):
        @functools.wraps(train_step)
        def step(data):
            self.count(data)
            return train_step(data)

        return step

    def count(self, batch):
        """Counts a step.

        Args:
            batch: Nested arrays. The length of the first array is the number of samples.
        """
        arrays = (x for x in keras.tree.flatten(batch) if getattr(x, "ndim", 0) > 0)
        self.samples += next((x.shape[0] for x in arrays), 0)
        self.steps += 1
