"""Learning rates, momentum correction, and the optimizer for custom training loops."""
