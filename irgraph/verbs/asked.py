"""Asks torch whether ops take the sizes that a resized dimension gives them."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.shapes import ShapeError, plain_sizes
from irgraph.verbs.refusal import RefusedError

Shapes = list[tuple[int, ...]]


def check_sizes(before: Graph, after: Graph) -> None:
    """Refuse a graph at other dimensions where torch refuses an op, or gives it another size.

    Asked is only about ops that torch's meta device gets right as they were.
    """
    asked: set[str] = set()
    for was, now in zip(before.leaves(), after.leaves(), strict=True):
        key = "" if was is now or not now.outputs else kind_of(was) + kind_of(now)
        if not key or key in asked:
            continue
        asked.add(key)
        if not _wrong(was, before):
            wrong = _wrong(now, after)
            if wrong:
                raise RefusedError(f"{now.name} does not take this size: {wrong}", [(was, "")])


def _wrong(op: Op, graph: Graph) -> str:
    """Return why torch does not give an op's results the sizes that they have, if so."""
    try:
        found = _shapes(plain_sizes(op, graph.schemas, graph.dims, graph.device))
    except ImportError:
        return ""
    except ShapeError as error:
        return str(error)
    for result in op.outputs:
        ends = [t.extent[1] for t in op.inputs if t.buffer == result.buffer]
        if ends and result.extent[1] > max(ends):
            return f"%{result.name} would reach beyond what it is a view of"
    said = _shapes(op.results)
    return "" if found == said else f"it would give {_spelt(found)}, not {_spelt(said)}"


def _spelt(shapes: Shapes) -> str:
    return ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes) or "nothing"


def _shapes(results: tuple[Result, ...]) -> Shapes:
    return [tuple(map(int, tensor.shape)) for tensor in tensors_in(results)]


def kind_of(op: Op) -> str:
    """Return a key shared by all ops that differ only in names and places."""
    values = (*op.operands, *op.attributes.items(), *op.results)
    return f"{op.name} {[_type(value) for value in values]}"


def _type(value: Value) -> object:
    if isinstance(value, Tensor):
        return (value.dtype, [*map(int, value.shape)], value.strides, value.offset, value.device)
    return [_type(item) for item in value] if isinstance(value, tuple) else value
