"""Layers that compute with the batches of all ranks."""
