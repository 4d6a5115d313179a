"""Analysis of traces: where the time of a step goes, on device and host, on one rank or many."""

from irgraph.analyze.analysis import Analysis, analyze

__all__ = ["Analysis", "analyze"]
