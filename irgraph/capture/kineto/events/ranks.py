"""Event trees of several files, read by as many processes as there are cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.capture.kineto.reading.ingest import read_processes
from irgraph.capture.kineto.reading.selection import (
    BYTES_PER_EVENT,
    EVERYTHING,
    Selection,
    estimated_events,
    text_size,
)
from irgraph.diagnostics import SourceSpan, fail

MIN_PARALLEL_BYTES = 200e6
"""Minimum bytes of text for which parallel reading outweighs the start of processes."""


def read_trees(
    paths: Sequence[str],
    selection: Selection = EVERYTHING,
    *,
    strict: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Tree]:
    """Yield the event trees of traces in the order of their files, one for each process.

    Files that are large enough, and fit into memory together, are read by one process each, with
    as many concurrent processes as there are cores. These import the caller's main module again:
    it must not start its work when imported.

    Args:
        paths: the files; ``-`` is standard input.
        selection: part of each trace to read, and the marks of its steps.
        strict: refuse traces that need a repair.
        progress: called periodically with the number of events read so far, if no process is
            started.

    Raises:
        IrgraphError: a trace cannot be used, or needs repairs and ``strict`` is set (exit code 4).
    """
    processes = min(len(paths), _cores())
    if processes < 2 or not _is_parallel_faster(paths, selection):
        for path in paths:
            yield from _read_file(path, selection, strict, progress)
        return
    read = partial(_read_compact, selection=selection, strict=strict)
    context = get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _restore_interrupt)
    try:
        for trees in pool.map(read, paths):
            yield from map(_expand_columns, trees)
    except BrokenProcessPool:
        message = f"a process that read {len(paths)} traces died, perhaps out of memory"
        raise fail(message, SourceSpan(paths[0]), hint="give fewer traces at once") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_parallel_faster(paths: Sequence[str], selection: Selection) -> bool:
    """Return whether files are large enough for processes and fit into memory together."""
    files = [Path(path) for path in paths]
    if not all(file.is_file() for file in files) or sum(map(text_size, files)) < MIN_PARALLEL_BYTES:
        return False
    memory = BYTES_PER_EVENT * sum(map(estimated_events, files))
    return selection.memory is None or memory < selection.memory


def _restore_interrupt() -> None:
    """Restore the default handler of SIGINT: only the parent process reports an interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read_file(
    path: str, selection: Selection, strict: bool, progress: Callable[[int], None] | None
) -> list[Tree]:
    """Return the trees of a file, one for each process that launches device work."""
    traces = read_processes(path, strict=strict, selection=selection, progress=progress)
    return [build_tree(trace, selection.marks) for trace in traces]


def _read_compact(path: str, selection: Selection, strict: bool) -> list[Tree]:
    """Read trees and shrink their absent columns to one element, to reduce the data sent back."""
    trees = _read_file(path, selection, strict, None)
    for tree in trees:
        columns = tree.trace.columns
        columns.update({key: v[:1] for key, v in columns.items() if v.strides == (0,)})
    return trees


def _expand_columns(tree: Tree) -> Tree:
    columns, count = tree.trace.columns, len(tree.parent)
    columns.update(
        {key: np.broadcast_to(v[0], count) for key, v in columns.items() if len(v) == 1 < count}
    )
    return tree
