"""Kineto traces of any age and state of repair: columns, event tree, attribution."""

from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.ingest import read_kineto
from irgraph.capture.kineto.reading.trace import EventKind, KinetoTrace

__all__ = ["EventKind", "Health", "KinetoTrace", "read_kineto"]
