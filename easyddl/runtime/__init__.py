"""The ranks of the job: how a job starts, how ranks wait for each other, and how a job ends."""
