"""Small priced graphs and hosts for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

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
    machine_std: float = 0.0

    def overheads(self, op: Op, launches: int) -> Overheads:
        return self.by_name.get(op.name, self.costs)


def kernel(time: float, family: str = "gemm", **more: object) -> Kernel:
    return Kernel(f"{family} test", family, time, **more)  # type: ignore[arg-type]


def priced(*calls: tuple[Op, Sequence[Kernel]]) -> Priced:
    """Price a graph of top-level operations, each with its kernels."""
    ops = tuple(op for op, _ in calls)
    return Priced(Graph("test", ops=ops), "test", {op: tuple(ks) for op, ks in calls})


times = st.floats(0.0, 1000.0, allow_nan=False)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Priced, FlatHost]:
    """Draw a step of up to a dozen operations, some in labels, and a host."""
    names = st.sampled_from(["aten.to", "aten.linear", "autograd.AddmmBackward0"])
    launches = st.sampled_from(["kernel", "memcpy", "memset", "call"])
    kernels = st.builds(
        Kernel, st.just("k"), st.sampled_from("ab"), times, launch=launches, blocking=st.booleans()
    )
    ops: list[Op] = []
    found: dict[int, tuple[Kernel, ...]] = {}
    for inner in draw(st.lists(st.lists(names, max_size=3), max_size=6)):
        body = tuple(Op(name) for name in inner)
        found |= {op: tuple(draw(st.lists(kernels, max_size=3))) for op in body}
        ops.extend(body if draw(st.booleans()) else [Op("a label", body=body)])
    t4 = st.fixed_dictionaries({"kernel": times, "memcpy": times})
    listed = st.lists(launches, max_size=2).map(tuple)
    costs = st.builds(
        Overheads, times, times, times, t4, times, st.sampled_from(["op", "global"]), listed
    )
    return Priced(Graph("drawn", ops=tuple(ops)), "test", found), FlatHost(draw(costs))
