"""What pricing an op takes from the rest of its graph."""

from __future__ import annotations

import re

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

FORWARD = re.compile(r"fbgemm\.(?:split|dense)_embedding_codegen_lookup_(?:(\w+)_)?function")
BACKWARD = re.compile(r"autograd\.CppNode<SplitLookupFunction_(\w+)_Op>\d*")


def fbgemm_lookups(graph: Graph) -> dict[int, Op]:
    """Return, by ``id(op)``, the op whose rule prices an autograd node of FBGEMM.

    Such a node takes the gradient alone and launches kernels that no op below it tells. The
    lookup that it belongs to has indices and tables: the last one of its kind and result size that
    has not been paired, as backward runs in reverse.
    """
    lookups: dict[tuple[str, tuple[int, ...]], list[Op]] = {}
    found: dict[int, Op] = {}
    for op in (op for op in graph.walk() if "ookup" in op.name):
        forward, backward = FORWARD.fullmatch(op.name), BACKWARD.fullmatch(op.name)
        if forward and op.outputs:
            kind = (forward[1] or "dense").lower()
            lookups.setdefault((kind, op.outputs[0].shape), []).append(op)
        elif backward and op.inputs:
            waiting = lookups.get((backward[1].lower(), op.inputs[0].shape))
            name = f"fbgemm.backward_{backward[1].lower() if waiting else 'unpaired'}"
            pair = waiting.pop() if waiting else replace(op, body=())
            found[id(op)] = replace(pair, name=name, results=())
    return found


def sparse_values(graph: Graph) -> dict[str, Tensor]:
    """Return, by name of each sparse tensor, the tensor of its values."""
    found: dict[str, Tensor] = {}
    for op in graph.walk():
        if op.name == "aten._values" and op.inputs and op.outputs:
            found.setdefault(op.inputs[0].name, op.outputs[0])
        made = op.outputs[0] if op.outputs else None
        if made is None or made.strides is None or any(made.strides):
            continue
        values = _values_of(op, made)
        if values is not None:
            found[made.name] = values
    return found


def _values_of(op: Op, made: Tensor) -> Tensor | None:
    if op.base.startswith("_sparse_coo_tensor") and len(op.inputs) >= 2:
        return op.inputs[1]
    if op.base == "_embedding_bag_backward" and op.attributes.get("sparse") is True:
        rows = op.inputs[1].numel
        return replace(made, shape=(rows, made.shape[-1]), strides=None)
    return None
