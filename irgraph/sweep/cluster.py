"""Computes chunks in the processes of a Dask cluster: a local one, or one that is running."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_all_start_methods
from typing import TYPE_CHECKING, Any

from irgraph.diagnostics import fail
from irgraph.sweep.grid import Chunk, Grid
from irgraph.sweep.price import ChunkFigures, price_chunk

if TYPE_CHECKING:
    from distributed import Client, Worker

CHUNKS_PER_THREAD = 3
"""Chunks submitted to the cluster per thread: no thread idles, and the number of unwritten results
stays bounded."""

MAX_WORKER_DEATHS = 5
"""Number of workers that may die on a chunk before the sweep gives the chunk up."""

TIMEOUT_S = 30
"""Seconds to wait for a scheduler, and for its first worker."""


def require_library(module: str, name: str) -> None:
    """Raise ``IrgraphError`` (exit code 2) if a library of the extra is not installed."""
    if find_spec(module) is None:
        hint = "pip install 'irgraph[distributed]'"
        raise fail(f"a sweep needs {name}, which is not installed", hint=hint, exit_code=2)


class ModelPlugin:
    """Plug-in of Dask's workers that sends the model's text and the grid to each worker once.

    Workers that join later receive it as well. Chunks refer to the model by its key.
    """

    def __init__(self, key: str, text: str, grid: Grid) -> None:
        self.name = key
        self.text, self.grid = text, grid

    def setup(self, worker: Worker) -> None:
        """Parse the model and store it in the worker."""
        from irgraph.text import parse

        models: dict[str, Any] = worker.__dict__.setdefault("irgraph_models", {})
        models[self.name] = (parse(self.text), self.grid)

    def teardown(self, worker: Worker) -> None:
        """Remove the model from the worker."""
        worker.__dict__.get("irgraph_models", {}).pop(self.name, None)


def price_on_worker(key: str, chunk: Chunk) -> ChunkFigures:
    """Return the figures of a chunk, in a worker that has the model."""
    from distributed import get_worker

    graph, grid = get_worker().irgraph_models[key]
    return price_chunk(graph, grid, chunk)


@contextmanager
def cluster_client(scheduler: str, workers: int, dashboard: str) -> Iterator[Client]:
    """Yield a client of a running scheduler, or of a new cluster on this machine.

    Raises ``IrgraphError`` if the scheduler does not answer or has no worker.
    """
    require_library("distributed", "Dask")
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": MAX_WORKER_DEATHS})
    if dashboard and find_spec("bokeh") is None:
        hint = "pip install bokeh, or leave --dashboard out"
        raise fail("a dashboard needs bokeh, which is not installed", hint=hint, exit_code=2)
    if not scheduler:
        with (
            dask.config.set({"distributed.worker.multiprocessing-method": _start_method()}),
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=dashboard or None,
                silence_logs=50,
                env=dict(os.environ),
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = Client(scheduler, timeout=TIMEOUT_S)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--scheduler: {scheduler} does not answer: {str(error).splitlines()[0]}"
        raise fail(message, hint="start one with `dask scheduler`", exit_code=2) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=TIMEOUT_S)
        except TimeoutError:
            hint = f"start some with `dask worker {scheduler}`"
            message = f"--scheduler: {scheduler} has no worker"
            raise fail(message, hint=hint, exit_code=2) from None
        yield client


def _start_method() -> str:
    """Return the start method of worker processes: ``forkserver`` if available, else ``spawn``.

    A fork server imports Dask once, but keeps the environment variables with which it started.
    The workers' environment is therefore passed explicitly.
    """
    return "forkserver" if "forkserver" in get_all_start_methods() else "spawn"


def compute_chunks(
    client: Client, key: str, text: str, grid: Grid, chunks: Sequence[Chunk]
) -> Iterator[tuple[Chunk, ChunkFigures]]:
    """Yield chunks with their figures as they finish; chunks of a dead worker run again.

    Raises ``IrgraphError`` if a chunk repeatedly kills its workers or cannot be priced, or if the
    scheduler is lost.
    """
    with _name_lost_scheduler(client):
        yield from _compute_chunks(client, key, text, grid, chunks)


@contextmanager
def _name_lost_scheduler(client: Client) -> Iterator[None]:
    """Translate the errors of a lost connection into ``IrgraphError`` (exit code 4)."""
    from concurrent.futures import CancelledError

    from distributed.comm import CommClosedError

    address = client.scheduler.address
    try:
        yield
    except (CommClosedError, CancelledError):
        message = f"--scheduler: the connection to {address} is lost"
        hint = "start a scheduler, and repeat the command: finished chunks are not computed again"
        raise fail(message, hint=hint) from None


def _compute_chunks(
    client: Client, key: str, text: str, grid: Grid, chunks: Sequence[Chunk]
) -> Iterator[tuple[Chunk, ChunkFigures]]:
    from distributed import as_completed

    client.register_plugin(_plugin(key, text, grid))
    threads = max(1, sum(client.nthreads().values()))
    remaining = iter(chunks)
    by_key: dict[str, Chunk] = {}
    running = as_completed()

    def submit() -> None:
        for chunk in (c for c in [next(remaining, None)] if c is not None):
            name = f"{key[:12]}-{chunk.number}"
            by_key[name] = chunk
            running.add(client.submit(price_on_worker, key, chunk, key=name, pure=False))

    for _ in range(CHUNKS_PER_THREAD * threads):
        submit()
    for future in running:
        chunk = by_key.pop(future.key)
        yield chunk, _result(future, chunk)
        future.release()
        submit()


def _plugin(key: str, text: str, grid: Grid) -> Any:  # noqa: ANN401  (a class of Dask's)
    """Return the plug-in as a subclass of Dask's class, which is imported only when needed."""
    from distributed import WorkerPlugin

    return type("SweptModel", (ModelPlugin, WorkerPlugin), {})(key, text, grid)


def _result(future: Any, chunk: Chunk) -> ChunkFigures:  # noqa: ANN401  (Dask's future)
    from distributed.scheduler import KilledWorker

    try:
        figures: ChunkFigures = future.result()
    except KilledWorker:
        workers = f"ended {MAX_WORKER_DEATHS} workers"
        message = f"chunk {chunk.number} {workers}: does it fit into their memory?"
        raise fail(message, hint="--chunk makes chunks smaller; what is done is kept") from None
    return figures
