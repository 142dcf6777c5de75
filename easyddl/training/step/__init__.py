"""The compiled training step: what it does with losses, gradients and optimizers."""
