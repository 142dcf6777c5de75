"""Trace files, the merged timeline of a job, and the analysis of overlap.

`read_timeline` and `analyze_overlap` are public. The other modules are not.
"""

__all__ = ["analyze_overlap", "read_timeline"]

_PLACES = {
    "analyze_overlap": ("overlap_analysis", "analyze"),
    "read_timeline": ("merged_timeline", "read"),
}


def __getattr__(name):
    """Imports what only the reader of a timeline needs, and no rank."""
    import importlib

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, function = _PLACES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)
