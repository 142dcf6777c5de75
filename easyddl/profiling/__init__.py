"""Trace files, the merged timeline of a job, and the analysis of overlap.

`read_timeline` and `analyze_overlap` are public. The other modules are not.
"""

from easyddl.profiling.merged_timeline import read as read_timeline
from easyddl.profiling.overlap_analysis import analyze as analyze_overlap

__all__ = ["analyze_overlap", "read_timeline"]
