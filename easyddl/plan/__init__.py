"""The plan of an allreduce: which hosts form groups, in which order, at least cost on a network."""
