"""Folders that ``irgraph record`` wrote: an execution trace and a Kineto trace, joined."""

from __future__ import annotations

from pathlib import Path

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source
from irgraph.capture.lower import FrontEnd
from irgraph.capture.recording.folder import execution_trace, kineto_trace


def recognises(source: Source) -> bool:
    """Recognise a folder; missing files are reported when it is read."""
    return source.path.is_dir()


def lower(
    source: Source,
    *,
    name: str | None = None,
    step: int | None = None,
    kineto: str | Path | None = None,
) -> Capture:
    """Lower one step; ``kineto`` is used instead of the folder's own Kineto trace."""
    from irgraph.capture.kineto.lower.measured import lower_with_times

    timed = kineto_trace(str(kineto or source))
    name = name or source.path.resolve().name
    return lower_with_times(execution_trace(str(source)), timed, name=name, step=step)[0]


FRONT_END = FrontEnd(
    "a folder of `irgraph record`", recognises, lower, reason="its sizes are those that ran"
)
