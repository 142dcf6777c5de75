"""Where the output of the ranks goes, and where the input of rank 0 comes from."""
