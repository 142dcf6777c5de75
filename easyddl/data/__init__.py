"""Splits data into one shard per rank. Each kind of data has a file of its own."""
