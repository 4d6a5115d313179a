"""PyTorch execution traces, alone or with the Kineto trace of the same steps."""

from __future__ import annotations

from pathlib import Path

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source, is_execution_trace
from irgraph.capture.lower import FrontEnd
from irgraph.capture.recording.folder import kineto_trace


def recognises(source: Source) -> bool:
    """Recognise an execution trace by its first keys."""
    return is_execution_trace(source.text)


def lower(
    source: Source,
    *,
    name: str | None = None,
    step: int | None = None,
    kineto: str | Path | None = None,
) -> Capture:
    """Lower one step; ``kineto`` is the Kineto trace of the same steps, for measured times."""
    if kineto is not None:
        from irgraph.capture.kineto.lower.measured import lower_with_times

        return lower_with_times(source, kineto_trace(str(kineto)), name=name, step=step)[0]
    from irgraph.capture.execution_trace import lower_execution_trace

    return lower_execution_trace(source, name=name, step=step)


FRONT_END = FrontEnd("an execution trace", recognises, lower, reason="its sizes are those that ran")
