"""The ranks of a step's collectives, the links between them, and the times.

The number of ranks comes from the op itself where it says so, else from the model's setting
``ranks``, else from other ops of the step; the curves from the setting ``fabric``, or else from the
device. What is not known stays unknown, with a reason: nothing is assumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from costmodels.collectives.curve import Form
from costmodels.collectives.load import fabric_of, find_curve, lacking, platforms, traffic
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.ranks import (
    FABRIC,
    RANK,
    check_fabric,
    group_of,
    groups_of,
    layout_of,
    peer_of,
    ranks_of,
)

OPS = {
    "c10d.allreduce_": "all_reduce",
    "c10d.allreduce_coalesced_": "all_reduce",
    "c10d.alltoall_": "all_to_allv",
    "c10d.alltoall_base_": "all_to_allv",
    "c10d.allgather_": "all_gather",
    "c10d.allgather_coalesced_": "all_gather",
    "c10d._allgather_base_": "all_gather_base",
    "c10d.allgather_into_tensor_coalesced_": "all_gather_base",
    "c10d.reduce_scatter_": "reduce_scatter",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d.broadcast_": "broadcast",
    "c10d.reduce_": "reduce",
    "c10d.barrier": "all_reduce",
    "c10d.send": "all_to_allv",
    "c10d.recv_": "all_to_allv",
    "_c10d_functional.all_reduce": "all_reduce",
    "_c10d_functional.all_reduce_": "all_reduce",
    "_c10d_functional.all_reduce_coalesced": "all_reduce",
    "_c10d_functional.all_reduce_coalesced_": "all_reduce",
    "_c10d_functional.all_to_all_single": "all_to_allv",
    "_c10d_functional.all_gather_into_tensor": "all_gather_base",
    "_c10d_functional.all_gather_into_tensor_coalesced": "all_gather_base",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_c10d_functional.broadcast": "broadcast",
    "_c10d_functional.broadcast_": "broadcast",
}
"""Collectives by the ops that start them; what one rank sends another is half of what both would
exchange."""

LINKED = {
    "V100SXM2": "v100", "A100SXM4": "a100", "H10080GBHBM3": "h100", "H200": "h200", "B200": "b200",
    "GB200": "b200", "B300": "b300", "GB300": "b300", "RTXPRO6000": "rtx-pro-6000",
}  # fmt: skip
"""Boards whose links are those that were measured, as their names begin, by platform."""


class Peers(Struct, frozen=True):
    """The ranks of a step and the links between them.

    Attributes:
        ranks: how many take part, 0 where nothing says so.
        local: how many of them share a machine.
        source: who says so.
        fabric: the platform whose curves are used, or a file that describes the links; ``""``
            where the device has none.
        device: name of the device sheet.
        groups: the ranks of the process groups that the model names.
        rank: which of them the model is, -1 where nothing says so.
    """

    ranks: int = 0
    local: int = 0
    source: str = ""
    fabric: str = ""
    device: str = ""
    groups: Mapping[str, tuple[int, ...]] = {}
    rank: int = -1

    def of(self, op: Op) -> Peers:
        """Return the ranks of one op: those that it names itself go first."""
        members = self.groups.get(group_of(op))
        if members:
            local = Counter(rank // max(self.local, 1) for rank in members)
            return replace(
                self, ranks=len(members), local=max(local.values()), source=f"as {group_of(op)} has"
            )
        own = ranks_of(op)
        if not own:
            return self
        return replace(self, ranks=own, local=min(own, self.local or own), source="as the op says")

    def curve(self, op: Op) -> Form:
        """Return the time of a collective op over bytes; ``lacks`` tells whether there is one."""
        mine = self.of(op)
        return find_curve(OPS[op.name], mine.ranks, mine.fabric, mine.local)

    def between(self, op: Op, peer: int) -> Peers:
        """Return the two ranks of an op that sends or receives; they may share a machine.

        Where nothing says which rank the model is, its own place in the group is taken to be the
        one before.
        """
        members = self.groups.get(group_of(op)) or range(self.ranks)
        other = members[peer] if peer < len(members) else peer
        own = self.rank if self.rank >= 0 else max(0, other - 1)
        machine = max(self.local, 1)
        local = 2 if own // machine == other // machine else 1
        return replace(self, ranks=2, local=local, source=f"{group_of(op) or 'world'} to one")

    def lacks(self, op: Op) -> str:
        """Return why a collective op has no time, ``""`` if it has one."""
        mine, peer = self.of(op), peer_of(op)
        if peer is not None and mine.ranks > 1:
            mine = self.between(op, peer[1])
        if op.name not in OPS:
            return "no curve of such an op was measured"
        if op.name != "c10d.barrier" and {t.device for t in (*op.inputs, *op.outputs)} == {"cpu"}:
            return "it exchanges host memory, of which no curve was measured"
        if not mine.ranks:
            return "nothing says how many ranks take part (--ranks N, or the setting ranks)"
        if mine.ranks == 1:
            return ""
        if not mine.fabric:
            known = ", ".join(platforms())
            others = f"--fabric takes {known}, or a file that describes its links"
            return f"no collectives were measured on {mine.device} ({others})"
        return lacking(OPS[op.name], mine.fabric, several=mine.local < mine.ranks)

    def __str__(self) -> str:
        """Return the ranks and who says so, such as ``16 ranks, 8 a machine, as given``."""
        layout = f"{self.local} a machine" if self.local < self.ranks else "on one machine"
        return f"{self.ranks} ranks {layout}, {self.source}"


def peers_of(graph: Graph, device: str) -> Peers:
    """Return who takes part in a graph's collectives on a device, by its sheet's name.

    Raises ``IrgraphError`` where the graph's settings make no sense.
    """
    fabric = _fabric(graph, device)
    layout = layout_of(graph)
    rank = graph.settings.get(RANK)
    return Peers(
        layout.ranks,
        layout.local,
        layout.source,
        fabric,
        device,
        groups_of(graph),
        int(rank) if isinstance(rank, int) else -1,
    )


def message_bytes(op: Op) -> int:
    """Return the bytes of an op's message as its collective's curve counts them.

    All that a rank holds of it: the larger of what goes in and what comes out. For an uneven
    all-to-all that is the largest of what the rank sends or receives.
    """
    first, *others = op.operands or ((),)
    written = sum(t.nbytes for t in tensors_in((first,)))
    rest = sum(t.nbytes for t in (*tensors_in(others), *op.outputs))
    return max(written, rest)


def sent_bytes(op: Op, peers: Peers) -> float:
    """Return the bytes that a rank sends to others at least, in a collective of known ranks.

    What every link carries of the message (``traffic``); of an all-to-all what is for others, an
    equal share for each where nothing says whose is whose.
    """
    kind = OPS[op.name]
    if kind != "all_to_allv":
        return traffic(kind, peers.ranks) * message_bytes(op)
    given = op.operands[:1] if op.name.startswith("_c10d_functional") else op.operands[1:2]
    return (1.0 - _own_share(op, peers)) * sum(t.nbytes for t in tensors_in(given))


def _own_share(op: Op, peers: Peers) -> float:
    """Return the share of what a rank puts into an all-to-all that is for itself."""
    parts = op.attributes.get("input_split_sizes")
    members = peers.groups.get(group_of(op)) or tuple(range(peers.ranks))
    if not isinstance(parts, tuple) or len(parts) != peers.ranks or peers.rank not in members:
        return 1.0 / peers.ranks
    sizes = [int(part) for part in parts if isinstance(part, int)]
    return sizes[members.index(peers.rank)] / sum(sizes) if sum(sizes) else 0.0


def _fabric(graph: Graph, device: str) -> str:
    given = graph.settings.get(FABRIC)
    if given is not None:
        name = check_fabric(str(given), platforms())
        fabric_of(name)  # a file that makes no sense is refused at once
        return name
    name = re.sub(r"[-_ ]", "", device).upper()
    return next((found for board, found in LINKED.items() if name.startswith(board)), "")
