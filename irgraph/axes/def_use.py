"""Def-use chains: the producer of each tensor and the ops that use it."""

from __future__ import annotations

from irgraph.axes.constraints import constrains_scope
from irgraph.axes.relations import ConstrainedOp
from irgraph.axes.views import is_slice
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor


class DefUse:
    """The sites of a graph: its device ops, and scopes that relate sizes.

    Attributes:
        sites: in launch order, outer before inner.
        tensors: every tensor by name.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = graph.by_name
        sized_ops = [op for op in graph.walk() if _has_sizes(op)]
        self.sites = [ConstrainedOp(op, number) for number, op in enumerate(sized_ops)]
        self._users: dict[str, list[ConstrainedOp]] = {}
        self._producers: dict[str, ConstrainedOp] = {}
        for site in self.sites:
            for tensor in site.inputs:
                self._users.setdefault(tensor.name, []).append(site)
            for tensor in site.outputs:
                self._users.setdefault(tensor.name, []).append(site)
                if not site.op.body:
                    self._producers[tensor.name] = site

    def users(self, name: str) -> list[ConstrainedOp]:
        """Return the sites that have a tensor as an operand or a result."""
        return self._users.get(name, [])

    def add_user(self, name: str, site: ConstrainedOp) -> None:
        """Record that a site depends on the sizes of a tensor that is not its operand."""
        self._users[name].append(site)

    def producer(self, tensor: Tensor) -> ConstrainedOp | None:
        """Return the device op that produces a tensor, ``None`` for inputs of the step."""
        return self._producers.get(tensor.name)


def _has_sizes(op: Op) -> bool:
    if op.is_annotation or op.is_autograd:
        return False
    if not op.body:
        return bool(op.operands or op.results)
    return bool(op.results) and (is_slice(op) or constrains_scope(op))
