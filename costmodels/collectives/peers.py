"""Who takes part in a step's collectives, over which links, and how long that takes.

The number of ranks comes from the op itself where it says so, else from the model's setting
``ranks``, else from other ops of the step; the curves from the setting ``fabric``, or else from the
device. What nobody says stays unknown, with a reason: no number stands in for it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from costmodels.collectives.curve import Form
from costmodels.collectives.load import find_curve, lacking, platforms
from irgraph.ir.cost import Kernel
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.text.diagnostics import fail, near

FAMILY = "collective"
"""Family of the kernels that exchange data between ranks."""

RANKS, FABRIC = "ranks", "fabric"
"""Settings of a model: how many ranks run it, and which curves time their collectives."""

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
"""Collectives by the ops that start them."""

SPLITS = ("output_split_sizes", "input_split_sizes")

LINKED = {"V100SXM2": "v100", "A100SXM4": "a100"}
"""Boards whose links are those that were measured, as their names begin, by platform."""

_LAYOUT = re.compile(r"(?:(\d{1,6})x)?(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks of a step and the links between them.

    Attributes:
        ranks: how many take part, 0 where nothing says so.
        local: how many of them share a machine.
        said: who says so.
        fabric: the platform whose curves are used, ``""`` where the device has none.
        device: name of the device sheet.
    """

    ranks: int = 0
    local: int = 0
    said: str = ""
    fabric: str = ""
    device: str = ""

    def of(self, op: Op) -> Peers:
        """Return the ranks of one op: those that it names itself go first."""
        own = ranks_of(op)
        if not own:
            return self
        return replace(self, ranks=own, local=min(own, self.local or own), said="as the op says")

    def curve(self, op: Op) -> Form:
        """Return the time of a collective op over bytes; ``lacks`` tells whether there is one."""
        mine = self.of(op)
        return find_curve(OPS[op.name], mine.ranks, mine.fabric, mine.local)

    def lacks(self, op: Op) -> str:
        """Say why a collective op has no time, ``""`` where it has one."""
        mine = self.of(op)
        if op.name not in OPS:
            return "no curve of such an op was measured"
        if not mine.ranks:
            return "nothing says how many ranks take part (--ranks N, or the setting ranks)"
        if mine.ranks == 1:
            return ""
        if not mine.fabric:
            known = ", ".join(platforms())
            return f"no collectives were measured on {mine.device} (--fabric takes {known})"
        return lacking(OPS[op.name], mine.fabric, several=mine.local < mine.ranks)

    def __str__(self) -> str:
        """Return the ranks and who says so, such as ``16 ranks, 8 a machine, as given``."""
        layout = f"{self.local} a machine" if self.local < self.ranks else "on one machine"
        return f"{self.ranks} ranks {layout}, {self.said}"


def is_collective(op: Op) -> bool:
    """Tell whether an op is called to exchange data with other ranks, known or not."""
    return op.name.startswith(("c10d.", "_c10d_functional.")) and op.base != "wait_tensor"


def unpriced(ops: Iterable[Op], peers: Peers) -> list[str]:
    """Return a line for each reason why collectives among ops have no time."""
    reasons = Counter(peers.lacks(op) for op in ops if is_collective(op))
    return [
        f"{count} collective{'s have' if count > 1 else ' has'} no time, and a floor stands in "
        f"(bytes at DRAM bandwidth): {reason}"
        for reason, count in reasons.items()
        if reason
    ]


def doubts(graph: Graph, device: str) -> list[str]:
    """Return the lines of ``unpriced`` for the collectives of a graph between devices."""
    leaves = (op for op in graph.leaves() if {t.device for t in op.inputs} != {"cpu"})
    return unpriced(leaves, peers_of(graph, device))


def told(kernels: Iterable[Kernel]) -> list[str]:
    """Return a line for each kind of collectives that were priced: time, ranks and curve."""
    kinds: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.family == FAMILY and kernel.formula:
            kinds[kernel.name.partition(" of ")[0], kernel.formula].append(kernel)
    return [
        f"{len(found)} {name}, {sum(k.time for k in found):.1f} us +- "
        f"{sum(k.spread for k in found):.1f} us: {formula}"
        for (name, formula), found in kinds.items()
    ]


def with_ranks(graph: Graph, ranks: int | str | None = None, fabric: str | None = None) -> Graph:
    """Return a graph whose settings say who takes part in its collectives.

    ``ranks`` is a number, or machines times ranks on each such as ``2x8``; ``fabric`` one of
    ``costmodels.collectives.load.platforms``. ``None`` leaves a setting as it is.

    Raises ``IrgraphError`` for what is neither.
    """
    given = {RANKS: ranks, FABRIC: fabric}
    added: dict[str, Value] = {name: value for name, value in given.items() if value is not None}
    if not added:
        return graph
    made = replace(graph, settings={**graph.settings, **added})
    _fabric(made, "")
    count, local = _layout(made)
    plain = {RANKS: count} if RANKS in added and count == local else {}
    return replace(made, settings={**made.settings, **plain})


def given_ranks(graph: Graph) -> tuple[str | None, str | None]:
    """Return what a graph's settings say of its ranks and their fabric, as ``with_ranks`` reads."""
    ranks, fabric = (graph.settings.get(name) for name in (RANKS, FABRIC))
    return (None if ranks is None else str(ranks), None if fabric is None else str(fabric))


def peers_of(graph: Graph, device: str) -> Peers:
    """Return who takes part in a graph's collectives on a device, by its sheet's name.

    Raises ``IrgraphError`` where the graph's settings make no sense.
    """
    fabric = _fabric(graph, device)
    ranks, local = _layout(graph)
    if ranks:
        return Peers(ranks, local, "as given", fabric, device)
    told = Counter(filter(None, map(ranks_of, _collectives(graph))))
    if len(told) != 1:
        return Peers(0, 0, "", fabric, device)
    (ranks,) = told
    return Peers(ranks, ranks, "as other ops of the step say", fabric, device)


def ranks_of(op: Op) -> int:
    """Return how many ranks an op says it has, 0 if it does not."""
    size = op.attributes.get("group_size")
    if isinstance(size, int) and size > 0:
        return int(size)
    lists = (op.attributes.get(name) for name in SPLITS)
    return next((len(found) for found in lists if isinstance(found, tuple) and found), 0)


def message_bytes(op: Op) -> int:
    """Return the bytes of an op's message as its collective's curve counts them.

    All that a rank holds of it: the larger of what goes in and what comes out. For an uneven
    all-to-all that is the largest of what the rank sends or receives.
    """
    first, *others = op.operands or ((),)
    written = sum(t.nbytes for t in tensors_in((first,)))
    rest = sum(t.nbytes for t in (*tensors_in(others), *op.outputs))
    return max(written, rest)


def _collectives(graph: Graph) -> Iterable[Op]:
    return (op for op in graph.walk() if op.name in OPS)


def _layout(graph: Graph) -> tuple[int, int]:
    """Return the ranks that a graph's setting gives, and how many of them share a machine."""
    given = graph.settings.get(RANKS)
    if given is None:
        return 0, 0
    found = _LAYOUT.fullmatch(str(given))
    machines, local = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not machines or not local:
        hint = "give their number, or machines times ranks on each, such as 8 or 2x8"
        raise fail(f"ranks: {given!r} is no number of ranks", hint=hint, exit_code=2)
    return math.prod((machines, local)), local


def _fabric(graph: Graph, device: str) -> str:
    given = graph.settings.get(FABRIC)
    if given is None:
        name = re.sub(r"[-_ ]", "", device).upper()
        return next((found for board, found in LINKED.items() if name.startswith(board)), "")
    if given not in platforms():
        known = ", ".join(platforms())
        message = f"fabric: no collectives were measured on {given!r}"
        guess = near(str(given), platforms())
        raise fail(message + guess, hint=f"known: {known}", exit_code=2)
    return str(given)
