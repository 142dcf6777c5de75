"""The training and the evaluation of a model within one call of `fit` or `evaluate`."""
