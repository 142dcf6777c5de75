"""A job while it runs: what its ranks report, and how it ends."""
