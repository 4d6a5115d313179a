"""Captures of a rank of a pipeline, whose stages need shapes from stages of other ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from irgraph.capture.emulate.environment import Process
from irgraph.capture.emulate.pipelines import (
    MissingStageError,
    StageSentError,
    StageShapes,
    stage_shapes,
)

T = TypeVar("T")


def note_size(size: int) -> None:
    """Set the batch size for which the next step is built."""
    shapes = stage_shapes.get()
    if shapes is not None:
        shapes.size = size


def run_with_neighbours(
    run: Callable[[Process | None, int], T],
    process: Process | None,
    doing: Callable[[str], None] = lambda _: None,
) -> T:
    """Return the result of a program as one rank.

    If a stage of a pipeline needs shapes from earlier stages, the program first runs as the rank of
    each of them, in order, until it has sent them.

    Args:
        run: runs the program as a process at a batch size, 0 for its own.
        process: the captured process; other ranks are not run if the program itself chooses it.
        doing: called with a description of the work in progress.
    """
    if process is None:
        return run(None, 0)
    shapes = StageShapes()
    token = stage_shapes.set(shapes)
    try:
        while True:
            try:
                return run(process, 0)
            except MissingStageError as missing:
                size, ranks, refusal = shapes.size, missing.ranks, missing.refusal
            for stage, rank in enumerate(ranks):
                if (size, stage) not in shapes.by_stage:
                    doing(f"running rank {rank} for the shapes that stage {stage} sends")
                    neighbour = Process(process.ranks, rank)
                    if not _sends(partial(run, neighbour, size), shapes, stage):
                        raise refusal
    finally:
        stage_shapes.reset(token)


def _sends(run: Callable[[], object], shapes: StageShapes, stage: int) -> bool:
    """Run a neighbouring rank, and return whether a stage of it sends shapes."""
    shapes.awaited = stage
    try:
        run()
    except StageSentError:
        return True
    finally:
        shapes.awaited = None
    return False
