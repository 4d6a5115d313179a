"""The folder that a recording fills, and what other commands take from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import read_bytes

EXECUTION_TRACE, KINETO_TRACE, FIGURES = "et.json", "kineto.json.gz", "step.json"
"""What the folder holds."""


class Figures(msgspec.Struct, frozen=True):
    """What a recording measured beside its traces: device (torch's name), median step time, us."""

    device: str
    step_time_us: float

    @property
    def on_accelerator(self) -> bool:
        """Whether the time is one of an accelerator, which predictions can be compared with."""
        return not self.device.startswith("cpu")


def kineto_trace(path: str) -> str:
    """Return the Kineto trace in a recording's folder; a path that is no folder as it is."""
    return _inside(path, KINETO_TRACE) if Path(path).is_dir() else path


def execution_trace(path: str) -> str:
    """Return the execution trace in a recording's folder; a path that is no folder as it is."""
    return _inside(path, EXECUTION_TRACE) if Path(path).is_dir() else path


def figures(folder: str) -> Figures:
    """Return what the recording in a folder measured."""
    path = _inside(folder, FIGURES)
    try:
        return msgspec.json.decode(read_bytes(path), type=Figures)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise fail(f"no figures of a recording: {error}", SourceSpan(path)) from error


def _inside(folder: str, name: str) -> str:
    path = Path(folder) / name
    if path.is_file():
        return str(path)
    raise fail(
        f"the folder holds no {name}",
        SourceSpan(folder),
        hint="give a folder that `irgraph record` wrote, or the trace itself",
    )
