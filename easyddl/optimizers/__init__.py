"""Learning rates for many ranks, and the optimizer of a custom training loop."""

from easyddl.optimizers.distributed_optimizer import DistributedOptimizer
from easyddl.optimizers.scale_lr import scale_lr
from easyddl.optimizers.warmup import LearningRateWarmup

__all__ = ["DistributedOptimizer", "LearningRateWarmup", "scale_lr"]
