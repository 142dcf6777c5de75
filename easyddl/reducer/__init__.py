"""The gradient reducer, its buckets, and all-reduce inside of a step."""
