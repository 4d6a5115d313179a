"""Analysis of traces: breakdown of the time of a step on device and host, of one rank or many."""

from irgraph.analyze.analysis import Analysis, analyze

__all__ = ["Analysis", "analyze"]
