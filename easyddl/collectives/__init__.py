"""Collectives on arrays, objects and variables, outside of a step."""
