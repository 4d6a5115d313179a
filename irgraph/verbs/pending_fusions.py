"""Fusions of disjoint parts of a graph, collected one at a time and made together."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.fuse import Fusion, collect
from irgraph.verbs.sequence import Segment, extent


class PendingFusions:
    """A graph, and fusions of it that are not made yet.

    A fusion is legal or not depending on the ops between its members. Fusions in launch order can
    be judged by the original graph; before one that reaches back, the pending fusions are made.
    """

    def __init__(self, graph: Graph) -> None:
        self._edit = Edit(graph)
        self._end: tuple[float, ...] = ()

    def graph_around(self, groups: Sequence[Sequence[Op]]) -> Graph:
        """Return a graph without pending fusions between the members of some groups.

        Raises ``ValueError`` if a member was removed.
        """
        members = [op for group in groups for op in group]
        if extent(self._edit.graph, members).start <= self._end:
            self.commit()
            extent(self._edit.graph, members)
        return self._edit.graph

    def fuse(
        self,
        groups: Sequence[Sequence[Op]],
        new: Sequence[Op],
        *,
        caller: str,
        assuming: str = "",
        known_segment: Segment | None = None,
    ) -> Fusion:
        """Collect the fusion of ``irgraph.verbs.fuse.put_in_place``; its graph is the original one.

        Raises ``RefusedError`` as that function does, ``ValueError`` as ``graph_around`` does.
        """
        graph = self.graph_around(groups)
        fusion = collect(
            self._edit, groups, new, caller=caller, assuming=assuming, known_segment=known_segment
        )
        self._end = extent(graph, (op for group in groups for op in group)).end
        return fusion

    def check(self, groups: Sequence[Sequence[Op]], new: Sequence[Op]) -> None:
        """Raise the errors of ``fuse``, and collect nothing."""
        collect(Edit(self.graph_around(groups)), groups, new, caller="")

    def commit(self) -> Graph:
        """Commit all pending fusions, and return the graph."""
        graph = self._edit.commit()
        if graph is not self._edit.graph:
            self._edit, self._end = Edit(graph), ()
        return graph
