"""What happens within one `fit` or `evaluate`."""
