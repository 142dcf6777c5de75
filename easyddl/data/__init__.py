"""Splitting data among the ranks: one file a kind of data."""
