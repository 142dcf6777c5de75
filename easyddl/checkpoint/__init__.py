"""Saves and restores the state of a training: atomic files and random states."""
