"""Kineto traces with operand shapes."""

from __future__ import annotations

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import ZIP, Source, is_kineto_trace
from irgraph.capture.lower import FrontEnd


def recognises(source: Source) -> bool:
    """Recognise a Kineto trace by its first keys, or a zip archive of one by its first member."""
    if source.start.startswith(ZIP):
        length = int.from_bytes(source.start[26:28], "little")
        first = source.start[30 : 30 + length]
        return b".json" in first and not first.startswith(b"serialized_")
    return is_kineto_trace(source.text)


def lower(source: Source, *, name: str | None = None, step: int | None = None) -> Capture:
    """Lower one step."""
    from irgraph.capture.kineto.lower.kineto_only import lower_kineto

    return lower_kineto(source, name=name, step=step)


FRONT_END = FrontEnd(
    "a Kineto trace", recognises, lower, reason="its sizes and times are those that ran"
)
