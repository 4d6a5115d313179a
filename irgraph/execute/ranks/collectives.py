"""Results of collectives on every rank, from the operands of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

import torch

from irgraph.execute.torch_values import Torch
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ops.book import collective_of, collectives, names_with
from irgraph.ops.operator import CollectiveKind, Trait

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
    attributes = ops[0].attributes
    root = attributes.get("root_rank", attributes.get("src", 0))
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


Compute: TypeAlias = Callable[[Sequence[Op], Sequence[Values]], list[Torch]]

NEW_RESULTS: Mapping[CollectiveKind, Compute] = {
    CollectiveKind.ALL_TO_ALL: _all_to_all,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
    CollectiveKind.ALL_GATHER_BASE: _all_gather,
    CollectiveKind.ALL_REDUCE: _all_reduce_copy,
}
"""Functions that compute a new tensor of each rank from the operands of all ranks."""

IN_PLACE: Mapping[CollectiveKind, Compute] = {
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.BROADCAST: _broadcast,
    CollectiveKind.ALL_GATHER_BASE: _gather_into,
    CollectiveKind.REDUCE_SCATTER: _scatter_into,
}
"""Functions that write operands of each rank, from the operands of all ranks."""


BY_TENSOR = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)
"""Collectives that treat each tensor of a list as one call would."""


@cache
def computations() -> Mapping[str, Compute]:
    """Return the function that computes each collective's results on all ranks, by name."""
    by_name: dict[str, Compute] = dict.fromkeys(names_with(Trait.WAIT), _wait)
    for name in collectives():
        compute = _computation(name)
        if compute is not None:
            by_name[name] = compute
    return by_name


def _computation(name: str) -> Compute | None:
    """Return the function of a collective; ``None`` if there is none for its lists of tensors."""
    collective = collective_of(name)
    if collective is None:
        return None
    arguments = [argument for schema in schemas_of(name) for argument in schema.arguments]
    has_lists = any(argument.type.startswith("Tensor[]") for argument in arguments)
    if not name.endswith("_"):
        return None if has_lists else NEW_RESULTS.get(collective)
    if has_lists and collective not in BY_TENSOR:
        return None
    return IN_PLACE.get(collective)
