"""Results of collectives on every rank, from the operands of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.execute.torch_values import Torch
from irgraph.ir.op import Op

Values = Sequence[Torch]


def _all_to_all(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    sent = [
        _split(operands[0], op, "input_split_sizes")
        for op, operands in zip(ops, values, strict=True)
    ]
    received = [_sizes(op, "output_split_sizes") for op in ops]
    for rank, sizes in enumerate(received):
        if sizes != [len(parts[rank]) for parts in sent]:
            raise ValueError(f"rank {rank} expects other sizes than it is sent")
    return [torch.cat([parts[rank] for parts in sent]) for rank in range(len(ops))]


def _sizes(op: Op, name: str) -> list[int]:
    attribute = op.attributes.get(name)
    return [int(size) for size in attribute] if isinstance(attribute, tuple) else []  # type: ignore[arg-type]


def _split(value: Torch, op: Op, name: str) -> Sequence[Torch]:
    parts: Sequence[Torch] = torch.split(value, _sizes(op, name))
    return parts


def _reduce(op: Op, values: Values) -> Torch:
    reduction = str(op.attributes.get("reduce_op", "sum")).lower().rpartition(".")[2]
    if reduction == "max":
        return torch.stack(list(values)).amax(0)
    total = torch.stack(list(values)).sum(0)
    if reduction not in ("sum", "avg"):
        raise ValueError(f"reductions by {reduction!r} are not computed here")
    return total / len(values) if reduction == "avg" else total


def _reduce_scatter(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    total = _reduce(ops[0], [operands[0] for operands in values])
    return [part.clone() for part in total.chunk(len(ops))]


def _all_gather(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    gathered = torch.cat([operands[0] for operands in values])
    return [gathered.clone() for _ in ops]


def _all_reduce(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    """Write every tensor's sum in place on each rank."""
    for tensors in zip(*values, strict=True):
        total = _reduce(ops[0], tensors)
        for tensor in tensors:
            tensor.copy_(total)
    return [None] * len(ops)


def _all_reduce_copy(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    total = _reduce(ops[0], [operands[0] for operands in values])
    return [total.clone() for _ in ops]


def _broadcast(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    """Write the tensors of the root on each rank."""
    root = ops[0].attributes.get("root_rank", 0)
    source = [tensor.clone() for tensor in values[root if isinstance(root, int) else 0]]
    for tensors in values:
        for target, tensor in zip(tensors, source, strict=True):
            target.copy_(tensor)
    return [None] * len(ops)


def _gather_into(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    """Write the inputs of all ranks, the second operands, into the first operand of each."""
    gathered = torch.cat([operands[1].flatten() for operands in values])
    for operands in values:
        operands[0].copy_(gathered.view_as(operands[0]))
    return [None] * len(ops)


def _scatter_into(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    """Write each rank's part of the sum of the second operands into its first operand."""
    total = _reduce(ops[0], [operands[1] for operands in values]).flatten()
    for operands, part in zip(values, total.chunk(len(ops)), strict=True):
        operands[0].copy_(part.view_as(operands[0]))
    return [None] * len(ops)


def _wait(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    pairs = zip(ops, values, strict=True)
    return [operands[0] if op.results else None for op, operands in pairs]


COLLECTIVE_OPS: Mapping[str, Callable[[Sequence[Op], Sequence[Values]], list[Torch]]] = {
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.reduce_scatter_tensor": _reduce_scatter,
    "_c10d_functional.all_gather_into_tensor": _all_gather,
    "_c10d_functional.all_reduce": _all_reduce_copy,
    "c10d.allreduce_": _all_reduce,
    "c10d.broadcast_": _broadcast,
    "c10d._allgather_base_": _gather_into,
    "c10d._reduce_scatter_base_": _scatter_into,
    "c10d.allreduce_coalesced_": _all_reduce,
    "_c10d_functional.all_reduce_": _all_reduce,
    "_c10d_functional.all_reduce_coalesced_": _all_reduce,
    "_c10d_functional.wait_tensor": _wait,
}
"""Functions that compute each collective's results on all ranks from the operands of all ranks."""
