"""Collectives and process groups in Chakra's form."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct, field

from irgraph.capture.chakra.schema import COLLECTIVES
from irgraph.ir.op import Op, tensors_in

KINDS = {
    "reduce_scatter": "REDUCE_SCATTER", "allreduce": "ALL_REDUCE", "all_reduce": "ALL_REDUCE",
    "allgather": "ALL_GATHER", "all_gather": "ALL_GATHER", "alltoall": "ALL_TO_ALL",
    "all_to_all": "ALL_TO_ALL", "broadcast": "BROADCAST", "reduce": "REDUCE",
    "barrier": "ALL_REDUCE",
}  # fmt: skip
"""Chakra's collective by a part of the op's name; the first match applies. NCCL has no barrier:
torch reduces one element (ProcessGroupNCCL.cpp)."""

WORLD_NAMES = ("", "world", "0")
"""Names of the group of all ranks, unless a model defines them otherwise."""

BARRIER_BYTES = 4
"""Number of bytes that a barrier exchanges: one float."""


class Collective(Struct, frozen=True):
    """A collective: its index in ``COLLECTIVES``, and the number of bytes that each rank sends."""

    kind: int
    nbytes: int


def collective_of(op: Op | None) -> Collective | None:
    """Return the collective of an op, ``None`` if Chakra has no name for it.

    The bytes are those of its operands, as in Chakra's converter (``PyTorchNode.comm_size``): of an
    all-gather the rank's own part, of a reduce-scatter all parts.
    """
    if op is None:
        return None
    base = op.base.lstrip("_")
    kind_name = next((kind for name, kind in KINDS.items() if name in base), None)
    if kind_name is None:
        return None
    input_bytes = [t.nbytes for t in tensors_in(op.operands) if t.name not in op.written]
    nbytes = sum(input_bytes or (t.nbytes for t in tensors_in(op.operands))) or BARRIER_BYTES
    return Collective(COLLECTIVES.index(kind_name), nbytes)


class Groups(Struct):
    """Process groups by number: ASTRA-sim reads their names as integers, 0 for all ranks.

    Attributes:
        ranks_by_name: ranks by the model's name of a group.
        numbers: numbers from 1 by ranks, shared by the files of several ranks.
        other_numbers: numbers of groups that collectives name and the model does not define;
            readers of the file will report them as unknown.
    """

    ranks_by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    other_numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ranks in self.ranks_by_name.values():
            self.numbers.setdefault(ranks, len(self.numbers) + 1)

    def number(self, name: str) -> int:
        """Return the number of a collective's group, 0 for all ranks."""
        if name in self.ranks_by_name:
            return self.numbers[self.ranks_by_name[name]]
        if name in WORLD_NAMES:
            return 0
        return self.other_numbers.setdefault(name, 1_000_000 + len(self.other_numbers))

    def text(self) -> str:
        """Return the groups in the form of a PyTorch trace: a JSON text as the only value."""
        entries = [
            {"pg_name": str(self.numbers[ranks]), "pg_desc": name, "ranks": list(ranks)}
            for name, ranks in self.ranks_by_name.items()
        ]
        return f"['{json.dumps(entries)}']"
