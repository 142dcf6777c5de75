"""Trace files, the merged timeline of a job, and the analysis of overlap."""
