"""The gradient reducer, which reduces gradients in buckets, and sums inside of a step."""
