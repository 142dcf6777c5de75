"""One call of `fit`: its context, its callbacks, the start and the end of its epochs."""
