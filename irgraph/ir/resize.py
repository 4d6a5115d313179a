"""A graph under other dimensions: every size that follows from one is computed anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from irgraph.ir.dim import rebind
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import Tensor


def with_dims(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """Return the graph with these dimensions set to new values; the others keep theirs.

    Shapes, strides and attributes that are expressions over the dimensions follow; plain numbers
    stay. Raises ``KeyError`` for a dimension that the graph lacks.
    """
    lacking = dims.keys() - graph.dims.keys()
    if lacking:
        raise KeyError(min(lacking))
    sizes = {**graph.dims, **dims}
    return replace(
        graph,
        dims=sizes,
        tensors=tuple(replace(d, tensor=_tensor(d.tensor, sizes)) for d in graph.tensors),
        ops=tuple(_op(op, sizes) for op in graph.ops),
    )


def _op(op: Op, dims: Mapping[str, int]) -> Op:
    return replace(
        op,
        operands=tuple(_value(v, dims) for v in op.operands),
        results=tuple(_result(r, dims) for r in op.results),
        attributes={name: _value(v, dims) for name, v in op.attributes.items()},
        body=tuple(_op(child, dims) for child in op.body),
        notes={},
    )


def _value(value: Value, dims: Mapping[str, int]) -> Value:
    if isinstance(value, Tensor):
        return _tensor(value, dims)
    if isinstance(value, tuple):
        return tuple(_value(item, dims) for item in value)
    if type(value) is not bool and isinstance(value, int):
        return rebind(value, dims)
    return value


def _result(result: Result, dims: Mapping[str, int]) -> Result:
    if isinstance(result, tuple):
        return tuple(_tensor(t, dims) for t in result)
    return None if result is None else _tensor(result, dims)


def _tensor(tensor: Tensor, dims: Mapping[str, int]) -> Tensor:
    strides = tensor.strides
    return replace(
        tensor,
        shape=tuple(rebind(n, dims) for n in tensor.shape),
        strides=None if strides is None else tuple(rebind(n, dims) for n in strides),
        offset=rebind(tensor.offset, dims),
    )
