"""The ranks of the job: its start, the waits of ranks for each other, and its end."""
