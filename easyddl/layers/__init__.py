"""Layers that compute with the batches of all ranks."""

from easyddl.layers.sync_batch_normalization import SyncBatchNormalization, sync_batch_norm

__all__ = ["SyncBatchNormalization", "sync_batch_norm"]
