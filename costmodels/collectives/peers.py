"""The ranks of a step's collectives, the links between them, and the times.

The number of ranks comes from the op itself if it specifies them, else from the model's setting
``ranks``, else from other ops of the step; the curves come from the setting ``fabric``, or else
from the device. Nothing is assumed: an unknown time is reported with a reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from costmodels.collectives.curve import Form
from costmodels.collectives.load import (
    fabric_of,
    find_curve,
    missing_curve_reason,
    platforms,
    traffic,
)
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
from irgraph.ops.book import collective_of
from irgraph.ops.operator import CollectiveKind

OTHER_CURVES = {
    CollectiveKind.ALL_TO_ALL: "all_to_allv",
    # a message between two ranks is half of an exchange
    CollectiveKind.MESSAGE: "all_to_allv",
    CollectiveKind.BARRIER: "all_reduce",
}
"""Curves of collectives whose name no curve has."""


PLATFORM_BY_BOARD = {
    "V100SXM2": "v100", "A100SXM4": "a100", "H10080GBHBM3": "h100", "H200": "h200", "B200": "b200",
    "GB200": "b200", "B300": "b300", "GB300": "b300", "RTXPRO6000": "rtx-pro-6000",
}  # fmt: skip
"""Platform whose links a board has, by prefix of the board's name."""


class Peers(Struct, frozen=True):
    """The ranks of a step and the links between them.

    Attributes:
        ranks: number of participating ranks, 0 if unknown.
        local: number of ranks that share a machine.
        source: source of the number of ranks.
        fabric: the platform whose curves are used, or a file that describes the links; ``""`` if
            the device has no links.
        device: name of the device sheet.
        groups: the ranks of the process groups that the model names.
        rank: the model's own rank, -1 if unknown.
    """

    ranks: int = 0
    local: int = 0
    source: str = ""
    fabric: str = ""
    device: str = ""
    groups: Mapping[str, tuple[int, ...]] = {}
    rank: int = -1

    def op_peers(self, op: Op) -> Peers:
        """Return the ranks of one op: its group's, else the op's own number, else the step's."""
        members = self.groups.get(group_of(op))
        if members:
            local = Counter(rank // max(self.local, 1) for rank in members)
            return replace(
                self, ranks=len(members), local=max(local.values()), source=f"as {group_of(op)} has"
            )
        op_ranks = ranks_of(op)
        if not op_ranks:
            return self
        return replace(
            self,
            ranks=op_ranks,
            local=min(op_ranks, self.local or op_ranks),
            source="as the op says",
        )

    def curve(self, op: Op) -> Form:
        """Return the time of a collective op over bytes, for an op without ``missing_reason``."""
        peers = self.op_peers(op)
        return find_curve(curve_name(op), peers.ranks, peers.fabric, peers.local)

    def pair_with(self, op: Op, peer: int) -> Peers:
        """Return the two ranks of an op that sends or receives; they may share a machine.

        If the model's own rank is unknown, it is assumed to be the rank before the peer.
        """
        members = self.groups.get(group_of(op)) or range(self.ranks)
        peer_rank = members[peer] if peer < len(members) else peer
        own_rank = self.rank if self.rank >= 0 else max(0, peer_rank - 1)
        machine = max(self.local, 1)
        local = 2 if own_rank // machine == peer_rank // machine else 1
        return replace(self, ranks=2, local=local, source=f"{group_of(op) or 'world'} to one")

    def missing_reason(self, op: Op) -> str:
        """Return the reason why a collective op has no time, ``""`` if it has one."""
        peers, peer = self.op_peers(op), peer_of(op)
        if peer is not None and peers.ranks > 1:
            peers = self.pair_with(op, peer[1])
        if not curve_name(op):
            return "no curve of such an op was measured"
        if collective_of(op.name) != CollectiveKind.BARRIER and {
            t.device for t in (*op.inputs, *op.outputs)
        } == {"cpu"}:
            return "it exchanges host memory, of which no curve was measured"
        if not peers.ranks:
            return "nothing says how many ranks take part (--ranks N, or the setting ranks)"
        if peers.ranks == 1:
            return ""
        if not peers.fabric:
            names = ", ".join(platforms())
            hint = f"--fabric takes {names}, or a file that describes its links"
            return f"no collectives were measured on {peers.device} ({hint})"
        return missing_curve_reason(curve_name(op), peers.fabric, several=peers.local < peers.ranks)

    def __str__(self) -> str:
        """Return the ranks and their source, such as ``16 ranks, 8 a machine, as given``."""
        layout = f"{self.local} a machine" if self.local < self.ranks else "on one machine"
        return f"{self.ranks} ranks {layout}, {self.source}"


def peers_of(graph: Graph, device: str) -> Peers:
    """Return the ranks of a graph's collectives, on the device with the given sheet name.

    Raises ``IrgraphError`` if the graph's settings are invalid.
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


def curve_name(op: Op) -> str:
    """Return the collective whose curve has an op's time, or else ``""``."""
    collective = collective_of(op.name)
    if collective is None:
        return ""
    return OTHER_CURVES.get(collective, str(collective))


def message_bytes(op: Op) -> int:
    """Return the bytes of an op's message as its collective's curve counts them.

    This is the larger of a rank's input and output. For an uneven all-to-all it is the larger of
    the bytes that the rank sends or receives.
    """
    first, *others = op.operands or ((),)
    written = sum(t.nbytes for t in tensors_in((first,)))
    rest = sum(t.nbytes for t in (*tensors_in(others), *op.outputs))
    return max(written, rest)


def sent_bytes(op: Op, peers: Peers) -> float:
    """Return the minimum bytes that a rank sends to others in a collective of known ranks.

    This is the link's share of the message (``traffic``). For an all-to-all it is the bytes for
    other ranks, with an equal share for each rank if the split is unknown.
    """
    kind = curve_name(op)
    if kind != "all_to_allv":
        return traffic(kind, peers.ranks) * message_bytes(op)
    inputs = op.operands[:1] if op.name.startswith("_c10d_functional") else op.operands[1:2]
    return (1.0 - _own_share(op, peers)) * sum(t.nbytes for t in tensors_in(inputs))


def _own_share(op: Op, peers: Peers) -> float:
    """Return the share of a rank's input of an all-to-all that is for the rank itself."""
    parts = op.attributes.get("input_split_sizes")
    members = peers.groups.get(group_of(op)) or tuple(range(peers.ranks))
    if not isinstance(parts, tuple) or len(parts) != peers.ranks or peers.rank not in members:
        return 1.0 / peers.ranks
    sizes = [int(part) for part in parts if isinstance(part, int)]
    return sizes[members.index(peers.rank)] / sum(sizes) if sum(sizes) else 0.0


def _fabric(graph: Graph, device: str) -> str:
    setting = graph.settings.get(FABRIC)
    if setting is not None:
        name = check_fabric(str(setting), platforms())
        fabric_of(name)  # refuses an invalid file immediately
        return name
    name = re.sub(r"[-_ ]", "", device).upper()
    return next(
        (platform for board, platform in PLATFORM_BY_BOARD.items() if name.startswith(board)), ""
    )
