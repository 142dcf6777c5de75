"""The state of a model: its variables, and what its layers compute from batches and data."""
