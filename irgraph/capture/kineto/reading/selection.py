"""Selects the part of a trace to read: all of it, the requested steps, or the last that fit."""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from msgspec import Struct

from irgraph.capture.common.source import Source
from irgraph.capture.kineto.reading.container import BLOCK, blocks
from irgraph.capture.kineto.reading.decoders import Raw
from irgraph.capture.kineto.reading.events import EventReader
from irgraph.capture.kineto.reading.health import Health
from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import FREE_BYTES

with contextlib.suppress(ImportError):
    import resource

BYTES_PER_EVENT = 450
"""Bytes of memory per complete event, from reading to replay; 310 to 410 were measured."""

_STEP = "ProfilerStep#"
_MIN_EVENT_BYTES = 150
"""Minimum average bytes of text per event."""

_COMPLETE = re.compile(rb'"ph"\s*:\s*"X"')
_SAMPLES = 8
"""Number of samples of the text from which the size of an event is estimated."""

_SAMPLE_BYTES = 1 << 20
"""Bytes of one sample."""


class Marks(Struct, frozen=True):
    """Marks that divide a trace into steps.

    Attributes:
        name: annotation or operator at which every step starts, ``""`` for the profiler's steps.
        whole_trace: treat the whole trace as one step.
    """

    name: str = ""
    whole_trace: bool = False


PROFILER = Marks()
"""The profiler's own marks, or the whole trace if it has none."""


class Selection(Struct, frozen=True):
    """Part of a trace to read.

    Attributes:
        steps: first and last number of the profiler steps to read; ``None`` for all.
        skip: categories to omit, in lower case.
        memory: maximum bytes to use; ``None`` for no limit. Only the last steps that fit are read
            from a larger trace.
        marks: marks of the steps.
    """

    steps: tuple[int, int] | None = None
    skip: frozenset[str] = frozenset()
    memory: int | None = None
    marks: Marks = PROFILER


EVERYTHING = Selection()


class Window(Struct, frozen=True):
    """The interval of time to read, in thousandths of the unit of the file's times."""

    start: int
    end: int


@dataclass(slots=True)
class Survey:
    """Events and steps counted in a first pass over a trace.

    Attributes:
        events: number of complete events.
        steps: start and end of the profiler steps by number, in thousandths of the file's unit.
    """

    events: int
    steps: dict[int, tuple[int, int]]


def choose_window(path: str | Path | Source, selection: Selection, health: Health) -> Window | None:
    """Return the window of a trace to read, ``None`` for all of it; ``health`` notes omitted steps.

    Raises:
        IrgraphError: the requested steps do not exist (exit code 2), or the trace is too large
            for the memory and has no steps to choose from (exit code 4).
    """
    too_large = _too_large(path, selection)
    if selection.steps is None and not too_large:
        return None
    if str(path) == "-":
        message = "steps are found by reading a trace twice, which standard input cannot be"
        raise fail(message, SourceSpan(str(path)), hint="write it to a file", exit_code=2)
    survey = _survey(path, selection.skip)
    chosen = sorted(survey.steps)
    if selection.steps is not None:
        chosen = _requested_steps(path, survey, selection.steps)
        health.add("K32", len(survey.steps) - len(chosen), _describe_range(chosen, survey))
    if too_large:
        fitting = _fitting_steps(path, survey, chosen, selection.memory or 0)
        health.add("K31", len(chosen) - len(fitting), _describe_range(fitting, survey))
        chosen = fitting
    stretches = [survey.steps[number] for number in chosen]
    return Window(min(start for start, _ in stretches), max(end for _, end in stretches))


def _describe_range(chosen: list[int], survey: Survey) -> str:
    numbers = sorted(survey.steps)
    return f"steps {chosen[0]}:{chosen[-1]} of {numbers[0]}:{numbers[-1]} are read"


def _requested_steps(
    path: str | Path | Source, survey: Survey, steps: tuple[int, int]
) -> list[int]:
    chosen = [number for number in sorted(survey.steps) if steps[0] <= number <= steps[1]]
    if not chosen:
        available = sorted(survey.steps)
        description = f"steps {available[0]} to {available[-1]}" if available else "no marked steps"
        message = f"no steps {steps[0]} to {steps[1]}: the trace has {description}"
        raise fail(message, SourceSpan(str(path)), exit_code=2)
    return chosen


def _fitting_steps(
    path: str | Path | Source, survey: Survey, chosen: list[int], memory: int
) -> list[int]:
    """Return the last steps that fit into the memory."""
    bytes_per_step = survey.events * BYTES_PER_EVENT / max(1, len(survey.steps))
    count = int(memory / bytes_per_step)
    if chosen and count >= 1:
        return chosen[-count:]
    total = survey.events * BYTES_PER_EVENT
    subject = "one step" if chosen else "it has no marked steps to choose from, and all"
    raise fail(
        f"the trace is too large: {subject} of its {survey.events:,} events would take about "
        f"{memory_text(bytes_per_step if chosen else total)}, of {memory_text(memory)}",
        SourceSpan(str(path)),
        hint="leave categories out (--skip-cat python_function) or allow more (--memory)",
    )


def memory_text(count: float) -> str:
    """Return bytes as text, never rounded to zero: ``1.5 GB``, ``420 MB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def _too_large(path: str | Path | Source, selection: Selection) -> bool:
    if selection.memory is None or str(path) == "-" or not Path(path).is_file():
        return False
    if text_size(Path(path)) / _MIN_EVENT_BYTES * BYTES_PER_EVENT < selection.memory:
        return False
    return estimated_events(path) * BYTES_PER_EVENT > selection.memory


def estimated_events(path: str | Path | Source) -> int:
    """Estimate the number of complete events in a trace from samples of its text."""
    counted = text = 0
    for sample in _samples(Path(path)):
        counted += len(_COMPLETE.findall(sample))
        text += len(sample)
    return int(counted * max(1.0, text_size(Path(path)) / text)) if text else 0


def _samples(path: Path) -> Iterator[bytes]:
    """Yield samples of a trace's text: across a plain file, from the start of an archive."""
    size = path.stat().st_size
    with path.open("rb") as file:
        packed = file.read(2) in (b"\x1f\x8b", b"PK")
        for number in range(0 if packed or size < _SAMPLES * _SAMPLE_BYTES else _SAMPLES):
            file.seek(size * number // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)
    if packed or size < _SAMPLES * _SAMPLE_BYTES:
        yield from islice(blocks(path, Health(str(path))), _SAMPLES * _SAMPLE_BYTES // BLOCK)


def text_size(path: Path) -> float:
    """Estimate the bytes of a file's decompressed text."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_SAMPLE_BYTES)
    if start.startswith(b"\x1f\x8b"):
        engine = zlib.decompressobj(31)
        try:
            text = engine.decompress(start, FREE_BYTES)
        except zlib.error:
            return size
        return size * len(text) / (len(start) - len(engine.unconsumed_tail))
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                return max((info.file_size for info in archive.infolist()), default=size)
        except (zipfile.BadZipFile, ValueError, RuntimeError):
            return size
    return size


def _survey(path: str | Path | Source, skip: frozenset[str]) -> Survey:
    """Count the events and find the steps of a trace in a first pass."""
    # findings are reported by the second pass
    reader = EventReader(Health(str(path)))
    survey = Survey(0, {})
    for events in reader.read(blocks(path, reader.health)):
        complete = [event for event in events if event.ph == "X"]
        survey.events += len(complete) - sum(e.cat.lower() in skip for e in complete if skip)
        for event in complete:
            if event.name.startswith(_STEP) and not event.cat.startswith("gpu"):
                _add_step(survey, event.name.removeprefix(_STEP), event.ts, event.dur)
    return survey


def _add_step(survey: Survey, number: str, start: float | Raw, length: float | Raw) -> None:
    try:
        begin, time = (_thousandths(value) for value in (start, length))
        survey.steps[int(number)] = (begin, begin + time)
    except ValueError:
        return


def _thousandths(value: float | Raw) -> int:
    if isinstance(value, (int, float)):
        return round(value * 1000)
    head, _, tail = bytes(value).decode().strip('"').partition(".")
    return int(head) * 1000 + int((tail + "000")[:3])


def memory_limit() -> int | None:
    """Return the bytes of memory that this process may use, ``None`` if unknown.

    The minimum of its own limits (``ulimit -v``), the limit of its control group, and the free
    memory.
    """
    limits = []
    if "resource" in globals():
        kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
        process_limits = [resource.getrlimit(kind)[0] for kind in kinds]
        limits = [limit for limit in process_limits if limit != resource.RLIM_INFINITY]
    group = _first_number(Path("/sys/fs/cgroup/memory.max"), "")
    free = _first_number(Path("/proc/meminfo"), "MemAvailable:")
    limits += [limit for limit in (group, free and free * 1024) if limit]
    return min(limits) if limits else None


def _first_number(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.removeprefix(key).split()
        if line.startswith(key) and words and words[0].isdecimal():
            return int(words[0])
    return None
