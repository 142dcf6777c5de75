"""The active calls of fit and evaluate on this rank, and the steps that they run."""
