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
    total = torch.stack(list(values)).sum(0)
    reduction = str(op.attributes.get("reduce_op", "sum")).lower()
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


def _wait(ops: Sequence[Op], values: Sequence[Values]) -> list[Torch]:
    return [None] * len(ops)


COLLECTIVE_OPS: Mapping[str, Callable[[Sequence[Op], Sequence[Values]], list[Torch]]] = {
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.reduce_scatter_tensor": _reduce_scatter,
    "_c10d_functional.all_gather_into_tensor": _all_gather,
    "c10d.allreduce_": _all_reduce,
    "c10d.allreduce_coalesced_": _all_reduce,
    "_c10d_functional.all_reduce_": _all_reduce,
    "_c10d_functional.all_reduce_coalesced_": _all_reduce,
    "_c10d_functional.wait_tensor": _wait,
}
"""Functions that compute each collective's results on all ranks from the operands of all ranks."""
