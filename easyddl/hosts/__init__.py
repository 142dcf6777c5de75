"""The hosts of a job: launchers and schedulers that list them, their ranks, and their racks."""
