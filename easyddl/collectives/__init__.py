"""Collectives on arrays, objects and variables, between steps."""
