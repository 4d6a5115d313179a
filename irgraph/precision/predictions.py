"""Predictions of a step: the logits by which a changed model is compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.edit import Edit
from irgraph.ir.effects import is_view, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

ACTIVATIONS = ("sigmoid", "_softmax", "softmax", "_log_softmax", "log_softmax")
"""Activations that turn logits into predictions; the logits are compared."""

MAX_AXES = 3
"""Maximum number of axes of predictions: samples, positions, classes. Tensors with more axes are
states or feature maps."""

HINT = "name tensors: --output-name NAME,NAME"


class Predictions(Struct, frozen=True):
    """Names of the logits to compare, and of the step's other floating-point results."""

    logits: tuple[str, ...]
    not_compared: tuple[str, ...] = ()


def predictions_of(graph: Graph, names: str = "") -> Predictions:
    """Return the logits of all predictions that a step returns, or of the tensors named.

    Predictions are floating-point results with one to three axes: all heads, or only the results
    of a sigmoid or softmax if there are any.

    Raises:
        IrgraphError: the step returns none, or no op returns a named tensor (exit code 2).
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
    """Return a graph that preserves its logits: without activations that overwrite them in place.

    Raises:
        IrgraphError: another op reads the result of such an activation (exit code 2).
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
    """Return the logits whose sigmoid or softmax a tensor is, else the tensor itself."""
    current = name
    while current in producers:
        op = producers[current]
        if op.base in ACTIVATIONS:
            return op.inputs[0].name
        if not (is_view(op) or op.base == "_to_copy") or not op.inputs:
            break
        current = op.inputs[0].name
    return name
