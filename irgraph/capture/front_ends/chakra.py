"""Execution traces in the Chakra schema of MLCommons."""

from __future__ import annotations

from irgraph.capture.chakra.stream import is_chakra
from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source, is_chakra_json
from irgraph.capture.lower import FrontEnd


def recognises(source: Source) -> bool:
    """Recognise a file by its first two messages, in binary form or printed as JSON."""
    return is_chakra(source.start) or is_chakra_json(source.text)


def lower(source: Source, *, name: str | None = None, step: int | None = None) -> Capture:
    """Lower one step; a trace that irgraph wrote gives its original model."""
    from irgraph.capture.chakra import lower_chakra

    return lower_chakra(source, name=name, step=step)


FRONT_END = FrontEnd("a Chakra trace", recognises, lower, reason="its sizes are those that ran")
