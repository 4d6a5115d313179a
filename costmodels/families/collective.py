"""Collectives: exchanges between ranks, by the curves of ``costmodels/collectives``."""

from __future__ import annotations

from costmodels.collectives.load import find_curve
from costmodels.collectives.peers import curve_name, message_bytes, sent_bytes
from costmodels.formulas.machine import Machine, Rule, no_kernels
from irgraph.ir.cost import COLLECTIVE, Kernel
from irgraph.ir.op import Op
from irgraph.ir.ranks import group_of, peer_of
from irgraph.ops.book import collectives

SOURCE = (
    "published measurements of V100, A100, H100, H200, B200, B300 and RTX PRO 6000, interpolated; "
    "other numbers of ranks and machines by the ratio of NCCL's own model; unknown where the "
    "number of ranks is not known"
)

INTERVAL = 1.645 / 0.798
"""Ratio of half a 90 % interval to the mean absolute error of normal errors."""


def _collective(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Return an op's kernels on the device of each rank; ``None`` if no curve is known."""
    if machine.peers.missing_reason(op):
        return None
    peers = machine.peers.op_peers(op)
    if peers.ranks == 1:
        return ()
    if peer_of(op) is not None:
        return _point_to_point(op, machine)
    curve, size = machine.peers.curve(op), message_bytes(op)
    time = curve.time(size)
    formula = f"{peers}; curve of {peers.fabric} ({curve.source})"
    return (
        Kernel(
            f"{curve_name(op)} of {peers.ranks}, {size} B",
            COLLECTIVE,
            time,
            INTERVAL * curve.error * time,
            outside=not curve.measured or size > curve.largest > 0,
            formula=formula,
            group=group_of(op),
            link_bytes=sent_bytes(op, peers),
        ),
    )


def _point_to_point(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernel that sends to, or receives from, one rank.

    In an all-to-all of two ranks each sends half of its data to the other, in both directions
    concurrently: the time is the curve's at twice the bytes.
    """
    direction, peer = peer_of(op) or ("", 0)
    size, pair = message_bytes(op), machine.peers.pair_with(op, peer)
    curve = find_curve("all_to_allv", 2, pair.fabric, pair.local)
    time = curve.time(2 * size)
    formula = f"half of an exchange between two ranks; curve of {pair.fabric} ({curve.source})"
    action = "send to" if direction == "to" else "receive from"
    return (
        Kernel(
            f"{action} {peer}, {size} B",
            COLLECTIVE,
            time,
            INTERVAL * curve.error * time,
            outside=not curve.measured,
            formula=formula,
            group=group_of(op),
            peer=f"{direction} {peer}",
            link_bytes=float(size) if direction == "to" else 0.0,
        ),
    )


RULES: dict[str, Rule] = {
    **dict.fromkeys(collectives(), _collective),
    "_c10d_functional.wait_tensor": no_kernels,
}
