"""Learning rates, momentum correction, and the optimizer of a custom loop."""
