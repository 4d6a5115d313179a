"""Two graphs on the same values: what leaves the step in both, and by how much it differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from irgraph.diagnostics import Diagnostic, Place, fail
from irgraph.execute.aliases import sharing
from irgraph.execute.callables import reduces
from irgraph.execute.machine import run
from irgraph.execute.pair import Measure, Pair, largest, plain
from irgraph.execute.records import DECLARED, Comparison
from irgraph.execute.scatter import SURE, scatter
from irgraph.execute.widen import SHORT, short_types
from irgraph.ir.dtypes import DIGITS
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.leaving import is_label, leaving
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor

TOLERANCE = {"f64": 1e-9, "f32": 1e-4}
"""Difference that counts as the same, over the change that a step makes to a tensor."""


def compare(before: Graph, after: Graph, seed: int, notes: Sequence[str]) -> Comparison:
    """Run two graphs; ``irgraph.execute.compare`` says what is compared and raised."""
    _check_starts(before, after)
    ranks = 2 if reduces(before) and reduces(after) else 1
    first = run(before, {}, seed, ranks)
    known = {name: value for name, value in first.initial.items() if name in after.by_name}
    second = run(after, known, seed, ranks)
    kinds, others = leaving(before), leaving(after)
    exact = _only_moved(before, after)
    precision = _precision(before, after)
    labels = {declared.tensor.name: declared.label for declared in before.tensors}
    written = _written(before) | _written(after)
    gradients = (plain(first[name]) for name, kind in kinds.items() if kind == "gradient")
    measure = Measure(
        0.0 if exact else precision[1],
        max(map(largest, gradients), default=0.0),
        not exact and precision[0] in SHORT,
    )
    leave = _both(before, after, kinds)
    wanted = [
        (kind, name, other)
        for kind, name, other in leave
        if other in second.values and not (kind in DECLARED and name not in written)
    ]
    scattered = [0.0] * len(wanted)
    if measure.coarse:
        for graph, started, place in ((before, first.initial, 1), (after, known, 2)):
            names = [one[place] for one in wanted]
            found = scatter(graph, started, seed, ranks, names, measure.norm)
            scattered = [
                math.hypot(s, found.get(n, 0)) for s, n in zip(scattered, names, strict=True)
            ]
    shared = sharing(before, after)
    compared = []
    for (kind, name, other), scatters in zip(wanted, scattered, strict=True):
        pair = Pair(before.by_name[name], other, kind, labels.get(name, ""), first, second)
        one = pair.compared(measure, SURE * scatters)
        compared.append(replace(one, problem=one.problem or shared.get((name, other), "")))
    made = {other for _, _, other in leave}
    return Comparison(
        compared,
        [(kind, name) for kind, name, other in leave if other not in second.values],
        [(kind, name) for name, kind in others.items() if name not in {*made, *first.values}],
        exact,
        precision,
        (*notes, f"seed {seed}"),
    )


def _both(before: Graph, after: Graph, kinds: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return what leaves the first step: its kind, its name, and its name in the second step.

    What the steps return goes by its place, all else by its name.
    """
    if before.returned is None or after.returned is None:
        return [(kind, name, name) for name, kind in kinds.items()]
    if len(before.returned) != len(after.returned):
        counts = f"{len(before.returned)} and {len(after.returned)}"
        raise fail(f"the steps return another number of tensors: {counts}")
    pairs = zip(before.returned, after.returned, strict=True)
    names = dict.fromkeys((first.name, second.name) for first, second in pairs)
    named = [(kind, name, name) for name, kind in kinds.items() if kind != "returned"]
    known = {name for _, name, _ in named}
    return named + [
        ("returned", *pair) for pair in names if pair[0] != pair[1] or pair[0] not in known
    ]


def _check_starts(before: Graph, after: Graph) -> None:
    """Refuse graphs that start from tensors of one name and different types."""
    types = {d.tensor.name: (d.tensor.dtype, d.tensor.shape) for d in before.tensors}
    for declared in after.tensors:
        tensor = declared.tensor
        if types.get(tensor.name, tensor.shape[:0]) not in ((), (tensor.dtype, tensor.shape)):
            source = before.by_name[tensor.name]
            raise fail(
                f"%{tensor.name} is {_type(source)} in one model and {_type(tensor)} in the other",
                Place(after.source or after.name),
                notes=[Diagnostic("the other model", Place(before.source or before.name),
                                  severity="note")],
                hint="graphs are compared at the same sizes: --dim gives a dimension its size",
            )  # fmt: skip


def _type(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(map(int, tensor.shape))}"


def _only_moved(before: Graph, after: Graph) -> bool:
    """Return whether every op of the second graph is one of the first: nothing new is computed."""
    return _signatures(after) <= _signatures(before)


def _signatures(graph: Graph) -> Counter[str]:
    return Counter(repr(list(_signature(op))) for op in graph.leaves() if not is_label(op))


def _signature(op: Op) -> Iterator[object]:
    yield op.name
    yield [_shape(value) for value in op.operands]
    yield sorted((name, _shape(value)) for name, value in op.attributes.items())


def _shape(value: Value) -> str:
    if isinstance(value, Tensor):
        return _type(value)
    if isinstance(value, tuple):
        return str([_shape(item) for item in value])
    return repr(value)


def _precision(before: Graph, after: Graph) -> tuple[str, float]:
    """Return the coarsest type that either graph computes with, and the share that f32 allows."""
    used = {t.dtype for graph in (before, after) for t in graph.by_name.values()}
    used |= short_types(before) | short_types(after)
    coarsest = max(used & DIGITS.keys(), key=list(DIGITS).index, default="f64")
    return coarsest, TOLERANCE.get(coarsest, TOLERANCE["f32"])


def _written(graph: Graph) -> set[str]:
    """Return the declared tensors whose bytes ops may write, by their buffers."""
    buffers = {tensor.buffer for op in graph.leaves() for tensor in written_by(op)}
    return {d.tensor.name for d in graph.tensors if d.tensor.buffer in buffers}
