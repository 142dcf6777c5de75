"""Timelines: their files, and what they tell of overlap."""
