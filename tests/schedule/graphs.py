"""Small priced graphs and hosts for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from irgraph.ir.cost import Kernel, Overheads, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

FLAT = Overheads(1.0, 2.0, 3.0, {"kernel": 4.0, "memcpy": 6.0}, 5.0)


@dataclass(frozen=True)
class FlatHost:
    """A host whose operations all cost the same, but for those listed by name."""

    costs: Overheads = FLAT
    by_name: Mapping[str, Overheads] = field(default_factory=dict)
    name: str = "flat"

    def overheads(self, op: Op, launches: int) -> Overheads:
        return self.by_name.get(op.name, self.costs)


def kernel(time: float, family: str = "gemm", **more: object) -> Kernel:
    return Kernel(f"{family} test", family, time, **more)  # type: ignore[arg-type]


def priced(*calls: tuple[Op, Sequence[Kernel]]) -> Priced:
    """Price a graph of top-level operations, each with its kernels."""
    ops = tuple(op for op, _ in calls)
    return Priced(Graph("test", ops=ops), "test", {id(op): tuple(ks) for op, ks in calls})
