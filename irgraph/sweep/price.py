"""Prices the variants of one chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.predict.options import PredictOptions
from irgraph.predict.variants import predict_variants
from irgraph.schedule.tasks import Floats
from irgraph.sweep.grid import Chunk, Grid


class ChunkFigures(Struct, frozen=True):
    """Figures of a chunk.

    Attributes:
        number: of the chunk.
        step, active: microseconds, ``float64[devices, sizes]``; NaN for refused sizes.
        refused: reason why there are no figures, by the index of the sizes.
    """

    number: int
    step: Floats
    active: Floats
    refused: Mapping[int, str]


def price_chunk(graph: Graph, grid: Grid, chunk: Chunk) -> ChunkFigures:
    """Return the figures of a chunk; sizes that the model cannot have are refused individually.

    Raises ``IrgraphError`` if a device, the host or another option is wrong.
    """
    sizes = grid.sizes(chunk)
    try:
        step, active = _times(graph, grid, chunk.host, sizes)
        return ChunkFigures(chunk.number, step, active, {})
    except IrgraphError:
        pass
    return _price_each(graph, grid, chunk, sizes)


def _times(
    graph: Graph, grid: Grid, host: str, sizes: Sequence[Mapping[str, int]]
) -> tuple[Floats, Floats]:
    options = PredictOptions(
        host=host,
        mode=grid.mode,
        software=grid.software,
        accounting=grid.accounting,
        weights=grid.weights,
    )
    variants = predict_variants(graph, grid.devices, sizes, options)
    return variants.step_time, variants.active_time


def _price_each(
    graph: Graph, grid: Grid, chunk: Chunk, sizes: Sequence[Mapping[str, int]]
) -> ChunkFigures:
    """Return the figures of the valid sizes, and the reasons why the others are refused."""
    shape = len(grid.devices), len(sizes)
    step, active = np.full(shape, np.nan), np.full(shape, np.nan)
    refused: dict[int, str] = {}
    for index, dims in enumerate(sizes):
        try:
            times = _times(graph, grid, chunk.host, [dims])
            step[:, index], active[:, index] = times[0][:, 0], times[1][:, 0]
        except IrgraphError as error:
            refused[index] = error.diagnostics[0].message
    return ChunkFigures(chunk.number, step, active, refused)
