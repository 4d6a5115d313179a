"""Facts on an op's price from the rest of its graph: FBGEMM's lookups and sparse values."""

from __future__ import annotations

import re

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

FORWARD = re.compile(r"fbgemm\.(?:split|dense)_embedding_codegen_lookup_(?:(\w+)_)?function")
BACKWARD = re.compile(r"autograd\.CppNode<SplitLookupFunction_(\w+)_Op>\d*")


def fbgemm_lookups(graph: Graph) -> dict[Op, Op]:
    """Return, by ``op``, the op whose rule prices an autograd node of FBGEMM.

    Such a node has the gradient as its only operand, and no inner op lists its kernels. Its lookup
    has indices and tables: it is the last unpaired lookup of the same kind and result size, because
    backward runs in reverse.
    """
    lookups: dict[tuple[str, tuple[int, ...]], list[Op]] = {}
    ops_by_id: dict[Op, Op] = {}
    for op in (op for op in graph.walk() if "ookup" in op.name):
        forward, backward = FORWARD.fullmatch(op.name), BACKWARD.fullmatch(op.name)
        if forward and op.outputs:
            kind = (forward[1] or "dense").lower()
            lookups.setdefault((kind, op.outputs[0].shape), []).append(op)
        elif backward and op.inputs:
            candidates = lookups.get((backward[1].lower(), op.inputs[0].shape))
            name = f"fbgemm.backward_{backward[1].lower() if candidates else 'unpaired'}"
            pair = candidates.pop() if candidates else replace(op, body=())
            ops_by_id[op] = replace(pair, name=name, results=())
    return ops_by_id


def sparse_values(graph: Graph) -> dict[str, Tensor]:
    """Return, by name of each sparse tensor, the tensor of its values."""
    values_by_name: dict[str, Tensor] = {}
    for op in graph.walk():
        if op.name == "aten._values" and op.inputs and op.outputs:
            values_by_name.setdefault(op.inputs[0].name, op.outputs[0])
        result = op.outputs[0] if op.outputs else None
        if result is None or result.strides is None or any(result.strides):
            continue
        values = _values_of(op, result)
        if values is not None:
            values_by_name[result.name] = values
    return values_by_name


def _values_of(op: Op, result: Tensor) -> Tensor | None:
    if op.base.startswith("_sparse_coo_tensor") and len(op.inputs) >= 2:
        return op.inputs[1]
    if op.base == "_embedding_bag_backward" and op.attributes.get("sparse") is True:
        rows = op.inputs[1].numel
        return replace(result, shape=(rows, result.shape[-1]), strides=None)
    return None
