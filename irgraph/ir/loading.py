"""The program's loading of batches: ops at which the host makes a batch, or workers do.

A loader without workers makes the batch on the thread that requests it, at the end of the step
before. Workers make it on a separate thread, concurrently with the whole step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.diagnostics.quantities import parse_time
from irgraph.ir.dim import BATCH, make
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.step_notes import step_notes, with_step_notes

LOAD = "irgraph.load_batch"
"""Name of an op that makes one batch; it computes nothing of the step."""

THREAD = "loader"
"""Host thread of a loader's workers."""

TIME_SOURCE = "loader_time"
"""Setting with the source of the loading times, if they are not the user's."""

UNTIMED = (
    "loading of batches, whose time is unknown (--loader 12ms specifies it): not part of the model"
)
"""Note of a step whose batches could not be timed."""

NANOSECONDS = 1000.0
"""Nanoseconds in a microsecond."""

HINT = "give the time of one batch, such as 12ms, or with the number of workers: 12ms/4"

_TEXT = re.compile(r"([^/]*)(?:/(\d{1,4}))?", re.ASCII)


class Loading(Struct, frozen=True):
    """The loading of a step's batches.

    Attributes:
        time: microseconds in which one process makes a batch.
        workers: number of processes that make batches concurrently with the step; 0 if the
            step's process makes them, ``None`` for the model's number.
    """

    time: float
    workers: int | None = None


def read_loading(text: str) -> Loading:
    """Return the loading that a text such as ``12ms`` or ``12ms/4`` (four workers) describes.

    Raises ``IrgraphError`` (exit code 2) for another text.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise fail(f"--loader: not a time: {text!r}", hint=HINT, exit_code=2)
    time = 0.0 if match[1] == "0" else parse_time(match[1], "--loader")
    return Loading(time, int(match[2]) if match[2] else None)


def batch_loads(graph: Graph) -> list[Op]:
    """Return the ops that make batches."""
    return [op for op in graph.leaves() if op.name == LOAD]


def batches_per_step(graph: Graph) -> int:
    """Return the number of batches that a step takes from its most frequent loader.

    A step without loads has one batch, as far as the graph shows.
    """
    counts = Counter(op.origin for op in batch_loads(graph))
    return max(counts.values(), default=1)


def loading_time(op: Op) -> float:
    """Return the microseconds in which a batch is made, by all workers together."""
    nanoseconds, workers = op.attributes.get("nanoseconds"), op.attributes.get("workers")
    time = nanoseconds / NANOSECONDS if isinstance(nanoseconds, int) else 0.0
    return time / max(workers, 1) if isinstance(workers, int) else time


def load_op(loading: Loading, graph: Graph, origin: str = "") -> Op:
    """Return an op that makes one batch of a graph's step, in proportion to its batch size."""
    workers = loading.workers or 0
    attributes: dict[str, int] = {"nanoseconds": _scaled(loading.time, graph)}
    if workers:
        attributes["workers"] = workers
    thread = THREAD if workers else "main"
    return Op(LOAD, attributes=attributes, thread=thread, origin=origin)


def _scaled(time: float, graph: Graph) -> int:
    """Return nanoseconds, as an expression over the batch size if the graph has one."""
    if BATCH not in graph.dims:
        return round(time * NANOSECONDS)
    per_sample = round(time * NANOSECONDS / graph.dims[BATCH])
    return make((((BATCH,), per_sample),), graph.dims)


def with_loading(graph: Graph, loading: Loading) -> Graph:
    """Return a graph whose batches take another time, or other workers make them.

    A graph that makes no batches gets one op, without workers unless ``loading`` specifies them.
    """
    settings = {name: value for name, value in graph.settings.items() if name != TIME_SOURCE}
    notes = [note for note in step_notes(graph) if note != UNTIMED]
    rarer = tuple(with_loading(step, loading) for step in graph.rarer)
    graph = with_step_notes(replace(graph, settings=settings), notes)
    present = batch_loads(graph)
    edit = Edit(graph)
    for op in present:
        workers = _workers(op) if loading.workers is None else loading.workers
        _replace_load(edit, op, load_op(Loading(loading.time, workers), graph, op.origin))
    if not present:
        edit.insert(load_op(loading, graph, "loader"))
    return replace(place_loads(edit.commit()), rarer=rarer, settings=graph.settings)


def _workers(op: Op) -> int:
    workers = op.attributes.get("workers", 0)
    return workers if isinstance(workers, int) else 0


def _replace_load(edit: Edit, old: Op, new: Op) -> None:
    edit.insert(replace(new, module=old.module, phase=old.phase), before=old)
    edit.remove(old)


def place_loads(graph: Graph) -> Graph:
    """Return a graph whose first batch is made at its position in a loop of such steps.

    A step begins when its batch exists: the host makes the batch of the next step at the end, while
    the device still works. Workers begin with the step.
    """
    leading, step, trailing = _split(graph.ops)
    outer = [*leading, *trailing]
    by_workers = [op for op in outer if op.thread == THREAD]
    by_host = [op for op in outer if op.thread != THREAD]
    return replace(graph, ops=(*by_workers, *step, *by_host))


def _split(ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], tuple[Op, ...], tuple[Op, ...]]:
    """Return the loads before the first other op, the ops of the step, and the loads after it."""
    others = [index for index, op in enumerate(ops) if op.name != LOAD]
    if not others:
        return ops, (), ()
    first, end = others[0], others[-1] + 1
    return ops[:first], ops[first:end], ops[end:]


def with_loading_times(graph: Graph, times: dict[str, Loading]) -> Graph:
    """Return a graph whose loads have times by loader (their origin); loads without are removed."""
    edit = Edit(graph)
    for op in batch_loads(graph):
        if op.origin in times:
            _replace_load(edit, op, load_op(times[op.origin], graph, op.origin))
        else:
            edit.remove(op)
    return place_loads(edit.commit())


def scaled_loads(graph: Graph) -> Iterator[Op]:
    """Yield the loads whose time depends on a dimension."""
    return (op for op in batch_loads(graph) if type(op.attributes.get("nanoseconds")) is not int)
