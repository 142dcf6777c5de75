"""Metrics of the samples of all ranks."""
