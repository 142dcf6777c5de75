"""The reduction of gradients in buckets, and sums over all ranks inside of a step."""
