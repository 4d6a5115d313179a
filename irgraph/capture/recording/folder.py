"""The folder of a recording, and the files that other commands read from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from irgraph.capture.common.source import Source, is_kineto_trace
from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.files import read_bytes

EXECUTION_TRACE, KINETO_TRACE, FIGURES = "et.json", "kineto.json.gz", "step.json"
"""Names of the files in the folder."""

TRACE_ENDINGS = (".json", ".json.gz")
"""Endings of the names of traces."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of a recording: device (torch's name) and median step time in microseconds."""

    device: str
    step_time_us: float

    @property
    def on_accelerator(self) -> bool:
        """Whether the time was measured on an accelerator, so it is comparable to predictions."""
        return not self.device.startswith("cpu")


def kineto_trace(path: str) -> str:
    """Return the path of the Kineto trace in a recording's folder; other paths unchanged."""
    return _inside(path, KINETO_TRACE) if Path(path).is_dir() else path


def kineto_traces(path: str) -> list[str]:
    """Return the Kineto traces of a folder: of a recording, or one for each rank.

    Other paths are returned unchanged. Raises ``IrgraphError`` if the folder has no trace.
    """
    folder = Path(path)
    if not folder.is_dir() or (folder / KINETO_TRACE).is_file():
        return [kineto_trace(path)]
    files = [file for file in sorted(folder.iterdir()) if file.name.endswith(TRACE_ENDINGS)]
    traces = [str(file) for file in files if _is_trace(file)]
    if not traces:
        raise fail(
            f"the folder holds no {KINETO_TRACE} and no other Kineto trace",
            SourceSpan(path),
            hint="give a folder that `irgraph record` wrote, a folder of traces, or a trace",
        )
    return traces


def _is_trace(file: Path) -> bool:
    """Return whether a file is a Kineto trace, by its first bytes."""
    with Source(file) as source:
        return is_kineto_trace(source.text)


def execution_trace(path: str) -> str:
    """Return the path of the execution trace in a recording's folder; other paths unchanged."""
    return _inside(path, EXECUTION_TRACE) if Path(path).is_dir() else path


def figures(folder: str) -> Figures:
    """Read the figures of the recording in a folder.

    Raises ``IrgraphError`` if the file is missing or damaged.
    """
    path = _inside(folder, FIGURES)
    try:
        data = read_bytes(path)
        refuse_duplicate_keys(data)
        return msgspec.json.decode(data, type=Figures)
    except (ValueError, RecursionError) as error:
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
