"""Functions of a notebook or a script on many ranks: `easyddl.run` and `easyddl.Ranks`."""
