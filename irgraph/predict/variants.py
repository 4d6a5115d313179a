"""Many variants of a step at once: batch sizes and devices, priced and scheduled together.

Calls that are equal in all that a price depends on are priced once per variant. Variants that
launch the same kinds of work share one task graph, and one pass over it times them all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias, Unpack

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.diagnostics import fail
from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.overheads import HostTable, load_host
from irgraph.predict.options import (
    PredictFields,
    PredictOptions,
    predict_options,
    prepared,
    resized,
)
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.sharing import run_sharing
from irgraph.schedule.simulate import simulate
from irgraph.schedule.tasks import Floats, Ints, last_ends
from irgraph.schedule.timeline import Timeline, busy_time

CELLS = 8_000_000
"""Maximum of tasks times variants in one pass: bounds its memory (8 bytes each, twice)."""

Calls: TypeAlias = tuple[tuple[Kernel, ...], ...]
"""Kernels of each representative call."""


class Variants(Struct, frozen=True):
    """Predicted times of every combination of device and sizes.

    Attributes:
        devices: names of the device sheets, the rows.
        sizes: of dimensions, the columns.
        step_time: microseconds, ``float64[devices, sizes]``.
        active_time: microseconds in which the device works, ``float64[devices, sizes]``.
    """

    devices: tuple[str, ...]
    sizes: tuple[Mapping[str, int], ...]
    step_time: Floats
    active_time: Floats


def predict_variants(
    graph: Graph,
    devices: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    options: PredictOptions | None = None,
    **changes: Unpack[PredictFields],
) -> Variants:
    """Predict a step at all of ``sizes`` on all of ``devices``, by models alone.

    The same times as ``predict`` gives one by one with ``measured=False``. ``sizes`` override
    ``dims`` of the options, ``devices`` their device.

    Raises ``IrgraphError`` for an unknown name, an impossible size, or an accounting that is not
    simulated.
    """
    chosen = predict_options(options, **changes)
    if not chosen.rules.simulated:
        message = f"accounting: {chosen.rules.name!r} predicts one step at a time"
        raise fail(message, hint="call predict for each variant", exit_code=2)
    graph = prepared(graph, chosen)
    sheets = [backend().device(name) for name in devices]
    price = partial(backend().price, options=replace(chosen, measured=False))
    table, rules = load_host(chosen.host), chosen.rules
    given = bool(chosen.indices) or "indices" in graph.settings
    calls = _Calls(graph, lookups_differ=given)
    step = np.zeros((len(sheets), len(sizes)))
    active = np.zeros_like(step)
    groups: dict[object, list[tuple[int, int, Calls]]] = defaultdict(list)
    for column, dims in enumerate(sizes):
        few = resized(calls.graph, dims)
        for row, device in enumerate(devices):
            priced = price(few, device)
            kernels = tuple(priced.of(op) for op in few.top_level())
            key = (_structure(kernels), column if _by_shape(table) else -1)
            groups[key].append((row, column, kernels))
    for members in groups.values():
        row, column, _ = members[0]
        whole = price(resized(graph, sizes[column]), devices[row])
        shared = _Structure(whole, simulate(whole, table, accounting=rules), calls.of, rules)
        for at in range(0, len(members), shared.width):
            some = members[at : at + shared.width]
            where = [row for row, _, _ in some], [column for _, column, _ in some]
            step[where], active[where] = shared.times([kernels for _, _, kernels in some])
    return Variants(tuple(s.name for s in sheets), tuple(sizes), step, active)


class _Calls:
    """Classes of calls of a graph with equal prices.

    Attributes:
        graph: the graph with one call of each class; valid for pricing only.
        of: for each top-level call in launch order, the position of its representative.
    """

    def __init__(self, graph: Graph, *, lookups_differ: bool) -> None:
        """Set ``lookups_differ`` if embedding tables have different index distributions."""
        known: dict[object, int] = {}
        kept: list[Op] = []
        self.of: list[int] = []
        for op in graph.top_level():
            alone = _is_sparse(op) or (lookups_differ and _has_indices(op))
            key = id(op) if alone else _key(op, {})
            if key not in known:
                known[key] = len(kept)
                kept.append(op)
            self.of.append(known[key])
        self.graph = replace(graph, ops=tuple(kept))


def _is_sparse(op: Op) -> bool:
    """Return whether a price depends on more than the call: on values of sparse tensors."""
    found = (t for inner in op.walk() for t in (*inner.inputs, *inner.outputs))
    return any(t.strides is not None and not any(t.strides) for t in found)


def _has_indices(op: Op) -> bool:
    return any(t.dtype in ("i64", "i32") for inner in op.walk() for t in inner.inputs)


def _key(op: Op, names: dict[str, int]) -> object:
    """Return all that the price of a call depends on, sizes as expressions."""
    return (
        op.name,
        tuple(_sketch(v, op, names) for v in op.operands),
        tuple(_sketch(v, op, names) for v in op.results),
        tuple((k, _sketch(v, op, names)) for k, v in op.attributes.items()),
        tuple(_key(child, names) for child in op.body),
    )


def _sketch(value: object, op: Op, names: dict[str, int]) -> object:
    if isinstance(value, Tensor):
        which = names.setdefault("$" + value.buffer, len(names))
        same = names.setdefault(value.name, len(names))
        sizes = [str(size) for size in value.shape], [str(step) for step in value.strides or ()]
        written = value.name in op.written
        return (
            value.dtype,
            *map(tuple, sizes),
            str(value.offset),
            value.device,
            which,
            same,
            written,
        )
    if isinstance(value, tuple):
        return tuple(_sketch(item, op, names) for item in value)
    return (type(value).__name__, str(value))


def _structure(calls: Calls) -> object:
    return tuple(tuple((k.launch, k.blocking, k.family) for k in kernels) for kernels in calls)


def _by_shape(table: HostTable) -> bool:
    """Return whether a host's overheads depend on sizes."""
    return any(entry.shapes for entry in table.file.ops.values())


class _Structure:
    """The task graph that several variants share."""

    def __init__(
        self, priced: Priced, timeline: Timeline, of: Sequence[int], rules: Accounting
    ) -> None:
        self.columns = timeline.columns
        self.tasks = self.columns.tasks
        self.work = np.flatnonzero(self.tasks.having("kernel"))
        self.rules = rules
        self.calls = {id(op): which for op, which in zip(priced.graph.top_level(), of, strict=True)}
        self.width = max(1, CELLS // max(len(self.tasks), 1))

    def times(self, variants: Sequence[Calls]) -> tuple[Floats, Floats]:
        """Return step and active times of variants, by the kernels of their representatives."""
        first = np.cumsum([0, *(len(kernels) for kernels in variants[0])])
        places = first[self._calls()] + self._ordinals()
        times = np.array([[k.time for ks in kernels for k in ks] for kernels in variants]).T
        lengths = np.repeat(self.tasks.length[:, None], len(variants), axis=1)
        if len(self.work):
            lengths[self.work] = times[places] + self.rules.per_kernel
        if len(np.unique(self.tasks.resource[self.work])) > 1:
            return self._one_by_one(lengths)
        steps = last_ends(self.tasks, lengths, len(variants))
        return steps, lengths[self.work].sum(axis=0)

    def _calls(self) -> Ints:
        """Return, for each kernel's task, the call that stands for its op's."""
        ops = self.columns.ops
        return np.array([self.calls[id(ops[op])] for op in self.tasks.op[self.work]], np.int64)

    def _ordinals(self) -> Ints:
        """Return, for each kernel's task, which of its op's kernels it is."""
        seen: Counter[int] = Counter()
        found = []
        for op in self.tasks.op[self.work].tolist():
            found.append(seen[op])
            seen[op] += 1
        return np.array(found, np.int64)

    def _one_by_one(self, lengths: Floats) -> tuple[Floats, Floats]:
        """Simulate each variant: with several streams, overlap and sharing differ."""
        found = []
        for column in lengths.T:
            start, end = run_sharing(self.tasks, column)
            busy = busy_time(start[self.work], end[self.work])
            found.append((end.max(initial=0.0), busy))
        step, active = np.array(found).T
        return step, active
