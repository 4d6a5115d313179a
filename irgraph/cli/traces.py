"""Shared code of commands that read traces."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import MAX_SIZE_DIGITS, console, print_error

if TYPE_CHECKING:
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.capture.kineto.reading.selection import Selection

TracesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...",
        help="Kineto traces, one per rank, or folders of them or of `irgraph record`; or -.",
    ),
]
OutliersOption = Annotated[
    str, typer.Option("--outliers", metavar="RULE", help="all, whiskers, trimmed or median.")
]

_NUMBER_STARTS = (*"+-0123456789",)
"""First characters of numbers in a table."""

_MIN_ONE_DECIMAL = 10
"""Minimum absolute value of numbers with one decimal in tables."""

_MIN_REPORTED_MEMORY = 1e9
"""Minimum estimated memory that is reported before a trace is read, in bytes."""

_MIN_ESTIMATED_FILE_SIZE = 10_000_000
"""Minimum file size for an estimate of memory, in bytes."""


@dataclass(frozen=True)
class TraceOptions:
    """Options for reading traces, as one parameter of a command."""

    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="A:B", help="Read only the profiler steps A to B."),
    ] = None
    step_mark: Annotated[
        str | None,
        typer.Option(
            "--step-mark", metavar="NAME", help="The annotation or operator that begins each step."
        ),
    ] = None
    whole: Annotated[
        bool, typer.Option("--whole", help="Treat the whole trace as one step, marked or not.")
    ] = False
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip-cat", metavar="CATEGORY", help="Skip a category, such as python_function."
        ),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", help="Memory limit, such as 4GiB (default: free memory)."
        ),
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse traces that need repairs (exit code 4).")
    ] = False
    health: Annotated[
        bool, typer.Option("--health", help="Show the health report even if it is clean.")
    ] = False

    def trees(self, paths: Sequence[str]) -> list[Tree]:
        """Return the event trees of traces; report their health on standard error."""
        return read_trees(paths, strict=self.strict, health=self.health, selection=self.selection)

    @cached_property
    def selection(self) -> Selection:
        """Parts of a trace to read."""
        from irgraph.capture.kineto.reading.selection import Marks, Selection, memory_limit

        if self.step_mark and self.whole:
            raise _usage_error("--step-mark and --whole exclude each other")

        limit = int(0.8 * (memory_limit() or 0)) or None
        return Selection(
            _parse_range(self.steps) if self.steps else None,
            frozenset(name.lower() for name in self.skip or ()),
            _parse_bytes(self.memory) if self.memory else limit,
            Marks(self.step_mark or "", self.whole),
        )


def _parse_range(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    is_valid = all(
        part.isdecimal() and len(part) <= MAX_SIZE_DIGITS for part in (first, last or first)
    )
    if not is_valid or (colon and not last) or int(last or first) < int(first):
        raise _usage_error(f"--steps: give two numbers such as 5:9, or one, not {text!r}")
    return int(first), int(last or first)


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?", text)
    if match is None:
        raise _usage_error(f"--memory: give a size such as 4GiB, not {text!r}")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" KMGT".index(prefix or " ")))


def _usage_error(message: str) -> Exception:
    from irgraph.diagnostics import fail

    return fail(message, exit_code=2)


def read_tree(path: str, selection: Selection | None = None) -> Tree:
    """Return the event tree of one trace.

    Raises ``IrgraphError`` if a folder has several, or a file has several ranks.
    """
    from irgraph.capture.recording.folder import kineto_traces
    from irgraph.diagnostics import SourceSpan, fail

    files = kineto_traces(path)
    if len(files) > 1:
        raise fail(
            f"the folder holds {len(files)} traces, and one is needed here",
            SourceSpan(path),
            hint=f"name one of them, such as {files[0]}",
        )
    trees = read_trees(files, strict=False, health=False, selection=selection)
    if len(trees) > 1:
        message = f"the trace holds {len(trees)} processes, each a rank, and one is needed here"
        raise fail(message, SourceSpan(path))
    return trees[0]


def read_trees(
    paths: Sequence[str],
    *,
    strict: bool,
    health: bool,
    selection: Selection | None = None,
) -> list[Tree]:
    """Return the event trees of traces; report their health on standard error."""
    from irgraph.capture.kineto.events import ranks
    from irgraph.capture.kineto.reading.health import CODES
    from irgraph.capture.kineto.reading.selection import EVERYTHING
    from irgraph.capture.recording.folder import kineto_traces

    trees, selection = [], selection or EVERYTHING
    files = [file for path in paths for file in kineto_traces(path)]
    for path in files:
        _report_memory(path, selection)
    for tree in ranks.read_trees(files, selection, strict=strict, progress=_progress()):
        report = tree.trace.health
        if strict:
            report.demand_clean()
        if health or report.repaired:
            for line in report.lines():
                print_error(line)
        else:
            for code in sorted({"K06", "K27", "K40"} & set(report.counts)):
                detail = report.details.get(code, "")
                print_error(
                    f"{report.source}: {CODES[code][1]} ({code})"
                    + (f": {detail}" if detail else "")
                )
        trees.append(tree)
    _report_equal_ranks(trees)
    return sorted(trees, key=lambda tree: tree.trace.rank)


def _report_equal_ranks(trees: Sequence[Tree]) -> None:
    """Report traces that name the same rank: their collectives are matched as if of two ranks."""
    files_by_rank: dict[int, list[str]] = {}
    for trace in (tree.trace for tree in trees):
        if isinstance(trace.header.get("distributedInfo"), dict):
            files_by_rank.setdefault(trace.rank, []).append(trace.source)
    for rank, files in files_by_rank.items():
        if len(files) > 1:
            names = ", ".join(files)
            print_error(
                f"warning: {len(files)} traces name rank {rank}: {names}; waits between ranks are "
                "of no use unless each is another rank"
            )


def _report_memory(path: str, selection: Selection) -> None:
    """Report the memory that a large trace will take."""
    from irgraph.capture.kineto.reading.selection import (
        BYTES_PER_EVENT,
        estimated_events,
        memory_text,
    )

    if (
        path == "-"
        or not Path(path).is_file()
        or Path(path).stat().st_size < _MIN_ESTIMATED_FILE_SIZE
    ):
        return
    events = estimated_events(path)
    memory = events * BYTES_PER_EVENT
    if memory > _MIN_REPORTED_MEMORY:
        limit = f", of {memory_text(selection.memory)}" if selection.memory else ""
        millions = f"{events / 1e6:.1f} million events"
        print_error(f"{path}: about {millions}, {memory_text(memory)} of memory{limit}")


def _progress() -> Any:  # noqa: ANN401
    """Return a function that shows progress on a terminal, else ``None``."""
    if not sys.stderr.isatty():
        return None

    def show(events: int) -> None:
        if events > 200_000:
            sys.stderr.write(f"\r{events:,} events read\r")

    return show


def repair_exit_code(trees: Sequence[Tree]) -> int:
    """Return the exit code: 3 if any trace was repaired, else 0."""
    return max((tree.trace.health.exit_code for tree in trees), default=0)


def record_cells(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a record: names in words, rounded numbers, ``-`` if unknown."""
    return {
        key.replace("_gb_s", " GB/s").replace("_", " "): _cell(value)
        for key, value in record.items()
    }


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= _MIN_ONE_DECIMAL else f"{value:.3g}"
    return "-" if value is None else str(value)[:90]


def print_rows(title: str, rows: Sequence[dict[str, Any]], footnotes: Sequence[str] = ()) -> None:
    """Print rows as a table with numbers right-aligned, followed by footnotes."""
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for key in rows[0]:
        is_numeric = any(
            isinstance(r[key], int | float) or str(r[key])[:1] in _NUMBER_STARTS for r in rows
        )
        table.add_column(key, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    out = console()
    out.print(table)
    for line in footnotes:
        out.print(line)
