"""Layers that use all ranks' batches."""
