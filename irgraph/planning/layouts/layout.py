"""Layouts of a step over ranks that share samples and ranks that split layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, TypedDict

from msgspec import Struct

from irgraph.plans.plan import DATA, LayerScheme, Mesh, Plan, TableSharding

Sharding: TypeAlias = Literal["replicated", "ZeRO-1", "ZeRO-2", "ZeRO-3", "retained"]


class PlanFields(TypedDict, total=False):
    """Fields of a plan that split parameters, gradients and the optimizer's state."""

    parameters: Literal["", "split", "retained"]
    optimizer: Literal["", "split"]
    gradients: Literal["", "split"]


SHARDINGS: Mapping[Sharding, PlanFields] = MappingProxyType(
    {
        "replicated": {},
        "ZeRO-1": {"optimizer": "split"},
        "ZeRO-2": {"optimizer": "split", "gradients": "split"},
        "ZeRO-3": {"parameters": "split"},
        "retained": {"parameters": "retained"},
    }
)
"""Plans' fields by sharding; ``retained`` is ZeRO-3 that stores gathered parameters until their
update."""


class StepLayout(Struct, frozen=True):
    """One layout of a step.

    Attributes:
        data: number of ranks with different samples.
        tensor: number of ranks with equal samples that split linear layers.
        sharding: split of parameters, gradients and state by ranks with different samples.
        layers: linear layers that are split, as in a plan.
        recomputed: paths of the modules that the backward pass repeats.
    """

    data: int
    tensor: int
    sharding: Sharding
    layers: Mapping[str, LayerScheme] = {}
    recomputed: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.data * self.tensor

    @property
    def mesh(self) -> str:
        """Numbers of ranks and the sharding, in a few words."""
        text = f"data {self.data} x tensor {self.tensor}"
        if self.sharding != "replicated":
            text += f", {self.sharding}"
        if self.recomputed:
            text += f", recomputing {', '.join(self.recomputed)}"
        return text

    @property
    def short_names(self) -> str:
        """Names of split layers within the repeated modules that contain them."""
        return ", ".join(name.rpartition("*.")[2] for name in self.layers)

    def __str__(self) -> str:
        """Return the layout in a few words, with the names of split layers."""
        return f"{self.mesh} of {self.short_names}" if self.layers else self.mesh

    def plan(self, tables: Collection[str] = ()) -> Plan:
        """Return the plan of the layout; each rank has a copy of every embedding table."""
        mesh = Mesh(self.data, self.tensor) if self.tensor > 1 else None
        copies = {name: TableSharding(DATA) for name in tables}
        fields = SHARDINGS[self.sharding]
        return Plan(self.ranks, copies, layers=self.layers, mesh=mesh, **fields)


def shardings_of(data: int) -> tuple[Sharding, ...]:
    """Return the shardings among a number of ranks: a single one has nothing to share."""
    return tuple(SHARDINGS) if data > 1 else ("replicated",)
