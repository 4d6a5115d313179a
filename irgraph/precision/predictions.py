"""What a step predicts: the logits that a changed model is held against."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.edit import Edit
from irgraph.ir.effects import is_view, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

ACTIVATIONS = ("sigmoid", "_softmax", "softmax", "_log_softmax", "log_softmax")
"""Ops that make predictions of logits, which are compared before them."""

MAX_AXES = 3
"""Axes of predictions: samples, places within one, classes. What has more is a state or a map."""

HINT = "name tensors: --output-name NAME,NAME"


class Predictions(Struct, frozen=True):
    """Names of the logits that are compared, and what else of floating type the step returns."""

    logits: tuple[str, ...]
    not_compared: tuple[str, ...] = ()


def predictions_of(graph: Graph, names: str = "") -> Predictions:
    """Return the logits of all predictions that a step returns, or of the tensors named.

    Predictions are what it returns in floating-point types, with one to three axes: all heads, and
    if some of them come from a sigmoid or softmax, these alone.

    Raises:
        IrgraphError: it returns none, or has no tensor of a name (exit code 2).
    """
    producers: dict[str, Op] = {t.name: op for op in graph.leaves() for t in op.outputs}
    if names:
        chosen = [name.strip().removeprefix("%") for name in names.split(",")]
        for name in (n for n in chosen if n not in producers):
            raise fail(f"no op makes %{name}", hint=HINT, exit_code=2)
        return Predictions(tuple(dict.fromkeys(_logits_of(n, producers) for n in chosen)))
    float_results = [t for t in graph.returned or () if t.dtype.startswith(("f", "bf"))]
    candidates = [t.name for t in float_results if 0 < t.rank <= MAX_AXES and t.name in producers]
    selected = [name for name in candidates if _logits_of(name, producers) != name] or candidates
    if not selected:
        detail = (
            f": %{float_results[0].name} has {float_results[0].rank} axes" if float_results else ""
        )
        raise fail(f"the step returns no predictions{detail}", hint=HINT, exit_code=2)
    not_compared = tuple(t.name for t in float_results if t.name not in selected)
    return Predictions(
        tuple(dict.fromkeys(_logits_of(name, producers) for name in selected)), not_compared
    )


def with_logits(graph: Graph, logits: Collection[str]) -> Graph:
    """Return a graph that leaves its logits as they are: without what squashes them in place.

    Raises:
        IrgraphError: something else reads what was squashed (exit code 2).
    """
    buffers = {graph.by_name[name].buffer: name for name in logits if name in graph.by_name}
    edit = Edit(graph)
    for position, leaf in enumerate(graph.leaves()):
        name = next((buffers[t.buffer] for t in written_by(leaf) if t.buffer in buffers), "")
        if not name or not leaf.base.endswith("_") or leaf.base[:-1] not in ACTIVATIONS:
            continue
        buffer = graph.by_name[name].buffer
        later = (
            op
            for index, op in graph.touching.get(buffer, ())
            if index > position and op != graph.end
        )
        if (reader := next((op for op in later if not is_view(op)), None)) is not None:
            conflict = f"{leaf.name} writes %{name} in place, and {reader.name} reads that"
            raise fail(f"{conflict}: its logits are gone", hint=HINT, exit_code=2)
        edit.remove(leaf)
    return graph if edit.empty else edit.commit()


def _logits_of(name: str, producers: Mapping[str, Op]) -> str:
    """Return the logits that a sigmoid or softmax made a tensor of, else the tensor itself."""
    current = name
    while current in producers:
        op = producers[current]
        if op.base in ACTIVATIONS:
            return op.inputs[0].name
        if not (is_view(op) or op.base == "_to_copy") or not op.inputs:
            break
        current = op.inputs[0].name
    return name
