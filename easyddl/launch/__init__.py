"""Starts jobs: `easyddl run`, and functions of a notebook on many ranks."""
