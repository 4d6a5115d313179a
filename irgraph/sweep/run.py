"""Runs a sweep, resumably, in this process, in several processes or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.overheads.default_host import table_name
from irgraph.predict.options import PredictOptions
from irgraph.predict.variants import predict_variants
from irgraph.sweep.cluster import cluster_client, compute_chunks, require_library
from irgraph.sweep.grid import MAX_VARIANTS, Chunk, Grid
from irgraph.sweep.price import ChunkFigures, price_chunk
from irgraph.sweep.results import Results
from irgraph.text.printer import print_graph

ChunkFiguresStream: TypeAlias = Iterator[tuple[Chunk, ChunkFigures]]
"""Chunks with their figures, in the order in which they finish."""


class Engine(Struct, frozen=True):
    """Processes that compute the chunks.

    Attributes:
        workers: processes on this machine; 0: this process alone, without Dask.
        scheduler: address of a running Dask scheduler, instead of ``workers``.
        dashboard: address of the dashboard of the own cluster, such as ``:8787``; ``""``: none.
    """

    workers: int = 0
    scheduler: str = ""
    dashboard: str = ""


class SweepOutcome(Struct, frozen=True):
    """Outcome of a sweep.

    Attributes:
        results: its folder.
        computed, existing: chunks that this run computed, and that the folder already contained.
    """

    results: Results
    computed: int
    existing: int


def sweep(
    graph: Graph,
    grid: Grid,
    folder: str | Path,
    engine: Engine | None = None,
    *,
    version: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> SweepOutcome:
    """Price all variants of a grid into a folder of Parquet files; skip chunks that it contains.

    Each chunk's file is written when the chunk is done, so that an interrupted sweep can resume.

    Args:
        graph: the step.
        grid: the variants.
        folder: a new one, or one of the same sweep.
        engine: processes that compute the chunks; by default this process.
        version: of irgraph: a folder written by another version is refused.
        progress: called after each chunk with the number of finished chunks and of all chunks.

    Raises:
        IrgraphError: a device, host, dimension or option is wrong, a library is missing, or the
            folder contains something else.
    """
    require_library("pyarrow", "pyarrow")
    _check(graph, grid)
    host_names = (table_name(name, graph, grid.software) for name in grid.hosts)
    grid = replace(grid, hosts=tuple(dict.fromkeys(host_names)))
    text = print_graph(graph)
    key = grid.fingerprint(text, version)
    results = Results(folder, grid, key)
    pending = results.pending_chunks()
    total = sum(1 for _ in grid.chunks())
    existing = total - len(pending)
    with _run_chunks(graph, text, key, grid, pending, engine or Engine()) as chunk_figures:
        for done, (chunk, figures) in enumerate(chunk_figures, existing + 1):
            results.write(chunk, figures)
            if progress is not None:
                progress(done, total)
    return SweepOutcome(results, len(pending), existing)


@contextmanager
def _run_chunks(
    graph: Graph, text: str, key: str, grid: Grid, pending: Sequence[Chunk], engine: Engine
) -> Iterator[ChunkFiguresStream]:
    """Yield chunks with their figures, as the engine computes them."""
    if not pending:
        yield iter(())
    elif engine.workers or engine.scheduler:
        with cluster_client(engine.scheduler, engine.workers, engine.dashboard) as client:
            yield compute_chunks(client, key, text, grid, pending)
    else:
        yield ((chunk, price_chunk(graph, grid, chunk)) for chunk in pending)


def _check(graph: Graph, grid: Grid) -> None:
    """Raise an error that would concern every variant, before any chunk is priced."""
    for name in grid.dims:
        if name not in graph.dims:
            dims = ", ".join(graph.dims) or "none"
            message = f"--dim: the model has no dimension {name!r}{suggestion(name, graph.dims)}"
            raise fail(message, hint=f"its dimensions: {dims}", exit_code=2)
    if grid.variants > MAX_VARIANTS:
        raise fail(f"{grid.variants:,} variants are more than {MAX_VARIANTS:,}", exit_code=2)
    for host in grid.hosts:
        options = PredictOptions(
            host=host,
            mode=grid.mode,
            software=grid.software,
            accounting=grid.accounting,
            weights=grid.weights,
        )
        predict_variants(graph, grid.devices, [{}], options)
