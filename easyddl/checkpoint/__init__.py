"""Saves and restores the state of a training: atomic files, saved models and random states."""
