"""The ranks of the job: how it starts, waits and ends."""
