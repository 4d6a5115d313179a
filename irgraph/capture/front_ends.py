"""One way in for all files that can be lowered: what a file holds decides, not its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from irgraph.capture.kineto.folder import execution_trace, kineto_trace
from irgraph.capture.result import Capture
from irgraph.text.diagnostics import IrgraphError, Place, fail

ZIP = b"PK\x03\x04"
GZIP = b"\x1f\x8b"
MODEL = b'model "'
LOOKED_AT = 8
FIELDS = frozenset(number << 3 | wire for number, wire in ((1, 0), (2, 2), (7, 2), (8, 2)))
"""First bytes of ONNX models: the version of the format, the producer, the graph or the opsets."""


def lower_file(
    path: str | Path,
    *,
    name: str | None = None,
    step: int | None = None,
    kineto: str | Path | None = None,
    dims: Mapping[str, int] | None = None,
) -> Capture:
    """Lower a file: an execution trace, a Kineto trace with shapes, an ONNX model or a program.

    Args:
        path: the file, or ``-`` for an execution trace on standard input, or a recording's folder
            (``irgraph record``), whose two traces are joined.
        name: the graph's name; by default the file's.
        step: of a trace, which of several steps; by default the last complete one.
        kineto: of a trace, the Kineto trace of the same steps, for measured times.
        dims: of a model or program, sizes of the dimensions that it leaves open, by name.

    Raises:
        IrgraphError: the file cannot be used, or an option does not suit what it holds (exit
            code 2).
    """
    if Path(path).is_dir():
        name = name or Path(path).resolve().name
        kineto = kineto_trace(str(path)) if kineto is None else kineto
        path = execution_trace(str(path))
    kind = kind_of(path)
    if kind == "trace":
        if dims:
            raise _unsuited(path, "an execution trace", "dim", "its sizes are those that ran")
        return _trace(path, name, step, kineto)
    for option, given in (("step", step), ("kineto", kineto)):
        if given is not None:
            what = "an ONNX model" if kind == "onnx" else "an exported program"
            raise _unsuited(path, what, option, "it is one forward pass that nobody measured")
    if kind == "onnx":
        from irgraph.capture.onnx import lower_onnx

        return lower_onnx(path, dims=dims, name=name)
    from irgraph.capture.export import lower_export

    return lower_export(path, dims=dims, name=name)


def kind_of(path: str | Path) -> str:
    """Return ``trace``, ``onnx`` or ``export`` by a file's first bytes, else by its suffix.

    What is neither is called a trace, whose reader says what is wrong with it.
    """
    try:
        with Path(path).open("rb") as file:
            start = b"" if str(path) == "-" else file.read(LOOKED_AT)
    except OSError:
        start = b""  # whoever reads the whole of it says so
    suffixes = {".onnx": "onnx", ".pt2": "export"}
    if start.startswith(MODEL):
        raise fail("this is a model already", Place(str(path)), hint=f"irgraph show {path}")
    if start.startswith(ZIP):
        return "export"
    if start[:2] == GZIP or start.lstrip()[:1] in (b"{", b"["):
        return "trace"
    return "onnx" if start[:1] and start[0] in FIELDS else suffixes.get(Path(path).suffix, "trace")


def _trace(
    path: str | Path, name: str | None, step: int | None, kineto: str | Path | None
) -> Capture:
    if kineto is None and is_kineto(path):
        from irgraph.capture.timed import lower_kineto

        return lower_kineto(path, name=name, step=step)
    if kineto is None:
        from irgraph.capture.execution_trace import lower_execution_trace

        return lower_execution_trace(path, name=name, step=step)
    from irgraph.capture.measured import lower_with_times

    kineto = kineto_trace(str(kineto))
    return lower_with_times(str(path), kineto, name=name, step=step)[0]


def is_kineto(path: str | Path) -> bool:
    """Tell a Kineto trace from an execution trace by its first keys."""
    from irgraph.capture.kineto.container import blocks, is_execution_trace
    from irgraph.capture.kineto.health import Health

    if str(path) == "-":
        return False
    try:
        start = next(blocks(path, Health(str(path)), any_trace=True))
    except IrgraphError:
        return False  # whoever reads it as an execution trace says what is wrong
    return b'"traceEvents"' in start and not is_execution_trace(start[:4096])


def _unsuited(path: str | Path, what: str, option: str, why: str) -> Exception:
    return fail(f"{what} takes no {option}: {why}", Place(str(path)), exit_code=2)
