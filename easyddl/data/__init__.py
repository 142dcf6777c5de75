"""Splits data into one shard for each rank. Each kind of data has its own file."""
