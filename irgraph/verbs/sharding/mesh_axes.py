"""The axes of a mesh of ranks, and the plan of each."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from irgraph.plans.layout import LAYERS, REPLICAS, SAMPLES
from irgraph.plans.plan import Mesh, Plan


class MeshAxis(Struct, frozen=True):
    """One axis of a mesh, as a rank sees it.

    Attributes:
        group: the name of the process group of the ranks that differ along the axis.
        plan: the plan of these ranks.
        index: the index of the rank along the axis.
        members: the ranks of the group, in order.
    """

    group: str
    plan: Plan
    index: int
    members: range


def mesh_axes(plan: Plan, mesh: Mesh, rank: int) -> list[MeshAxis]:
    """Return the axes of a mesh in the order in which they split a step.

    Layers are split first, so that ranks with other samples share the parameters of their part of
    each layer. Replicas are last: they sum the gradients of a share.
    """
    samples = Plan(mesh.data, plan.tables, norms=plan.norms)
    axes = [
        (
            SAMPLES,
            replace(
                samples,
                parameters=plan.parameters,
                optimizer=plan.optimizer,
                gradients=plan.gradients,
            ),
        )
    ]
    if plan.layers or plan.pins:
        layers = Plan(mesh.tensor, plan.tables, layers=plan.layers, pins=plan.pins)
        axes.insert(0, (LAYERS, layers))
    if mesh.replicas > 1:
        axes.append((REPLICAS, replace(samples, ranks=mesh.replicas)))
    result, step = [], 1
    for group, axis_plan in axes:
        index = rank // step % axis_plan.ranks
        first = rank - index * step
        members = range(first, first + axis_plan.ranks * step, step)
        result.append(MeshAxis(group, axis_plan, index, members))
        step *= axis_plan.ranks
    return result
