"""Placements of activations that a plan fixes, by the names of modules or of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.tensor import Tensor
from irgraph.ops.places import SAME, Place, split
from irgraph.plans.plan import PIN, Plan
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.choices.candidates import quotient


def pinned_places(graph: Graph, plan: Plan) -> dict[str, Place]:
    """Return the places of tensors that a plan pins, by name.

    Raises:
        IrgraphError: the plan names a module or a tensor that the model lacks (exit code 2).
        RefusedError: ranks cannot share an axis.
    """
    places: dict[str, Place] = {}
    modules = module_results(graph) if plan.pins else {}
    roles = {d.tensor.name: d.role for d in graph.tensors}
    for pattern, text in plan.pins.items():
        tensors = list(_matches(graph, modules, pattern))
        if not tensors:
            kind = "tensor" if pattern.startswith("%") else "module with results"
            message = f"plan: the model has no {kind} {pattern!r}{suggestion(pattern, modules)}"
            names = ", ".join(list(modules)[:8]) or "none"
            raise fail(message, hint=f"modules: {names}", exit_code=2)
        for tensor in tensors:
            if roles.get(tensor.name, "input") != "input":
                raise RefusedError(f"%{tensor.name} is no activation: `layers` splits parameters")
            place = _place(tensor, text, plan.ranks)
            if places.setdefault(tensor.name, place) != place:
                message = (
                    f"plan: %{tensor.name} is {places[tensor.name]}, and {place} by {pattern!r}"
                )
                raise fail(message, exit_code=2)
    return places


def _place(tensor: Tensor, text: str, ranks: int) -> Place:
    match = PIN.fullmatch(text)
    assert match is not None
    if match[1] is None:
        return SAME
    axis = int(match[1])
    if axis >= tensor.rank or quotient(tensor.shape[axis], ranks) is None:
        shape = ", ".join(map(str, tensor.shape))
        raise RefusedError(
            f"%{tensor.name} [{shape}] has no axis {axis} that {ranks} ranks can share equally"
        )
    return split(axis)


def _matches(graph: Graph, modules: dict[str, list[Tensor]], pattern: str) -> Iterator[Tensor]:
    """Yield the tensors of a name, or the results of modules."""
    if pattern.startswith("%"):
        for name, tensor in graph.by_name.items():
            if fnmatchcase(name, pattern[1:]):
                yield tensor
        return
    for name, tensors in modules.items():
        if fnmatchcase(name, pattern):
            yield from tensors


def module_results(graph: Graph) -> dict[str, list[Tensor]]:
    """Return the tensors that modules compute in the forward pass, and other ops read, by module.

    Ops of a module are those of the modules inside it, too.
    """
    calls = [op for op in graph.ops if op.phase == "forward" and not op.is_annotation]
    readers: dict[str, list[str]] = {}
    for op in calls:
        for tensor in op.inputs:
            readers.setdefault(tensor.name, []).append(op.module)
    results: dict[str, list[Tensor]] = {}
    for op in calls:
        names = op.module.split(".") if op.module else []
        for count in range(1, len(names) + 1):
            module = ".".join(names[:count])
            outside = [
                tensor
                for tensor in op.outputs
                if any(
                    not f"{reader}.".startswith(f"{module}.")
                    for reader in readers.get(tensor.name, ())
                )
            ]
            if outside:
                results.setdefault(module, []).extend(outside)
    return results
