"""Roofline of a predicted step: operations and bytes of each priced call."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.backend import DeviceFacts
from irgraph.ir.cost import COLLECTIVE, Priced
from irgraph.ir.op import Op
from irgraph.ops.flops import flops, is_product
from irgraph.ops.traffic import moves_all, traffic
from irgraph.report.roofline import CallWork


def works_of(priced: Priced, device: DeviceFacts) -> list[CallWork]:
    """Return the calls of a priced step with device work, and calls without a cost model."""
    unknown = set(priced.unknown)
    return [
        _work(op, priced, device)
        for top in priced.graph.ops
        for op in _priced_ops(top, priced, unknown)
        if priced.of(op) or op in unknown
    ]


def _priced_ops(op: Op, priced: Priced, unknown: set[Op]) -> Iterator[Op]:
    """Yield the ops that are priced as a whole, and ops without a cost model."""
    if op in priced.kernels or op in unknown:
        yield op
        return
    for child in op.body:
        yield from _priced_ops(child, priced, unknown)


def _work(op: Op, priced: Priced, device: DeviceFacts) -> CallWork:
    work = priced.of(op)
    over_link = bool(work) and all(kernel.launch == "memcpy" for kernel in work)
    has_collective = any(kernel.family == COLLECTIVE for kernel in work)
    dtype = op.inputs[0].dtype if op.inputs else ""
    if dtype == "f32" and "convolution" in op.base:
        dtype = device.convolution_dtype
    return CallWork(
        op.name,
        " ".join(_text(tensor.dtype, tensor.shape) for tensor in op.inputs),
        dtype,
        tuple((kernel.name, kernel.time) for kernel in work),
        _flop(op),
        None if has_collective else _moved_bytes(op),
        over_link,
    )


def _flop(op: Op) -> int | None:
    """Return the operations of a call; of one without a formula, of the products in it."""
    if is_product(op.name):
        return flops(op)
    counts = [flops(leaf) for leaf in op.walk() if not leaf.body and is_product(leaf.name)]
    return sum(count or 0 for count in counts) if counts and None not in counts else None


def _moved_bytes(op: Op) -> int | None:
    """Return the bytes of a call; of a composite call, the bytes of its only op that moves any."""
    moving_ops = [leaf for leaf in op.walk() if not leaf.body and moves_all(leaf.name)]
    is_counted_whole = moves_all(op.name) or len(moving_ops) != 1
    return traffic(op if is_counted_whole else moving_ops[0])


def _text(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(str(int(size)) for size in shape)}]"
