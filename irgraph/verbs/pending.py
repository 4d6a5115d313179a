"""Changes to parts of a graph that lie apart, collected one by one and made together."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.fuse import Fusion, collect
from irgraph.verbs.sequence import Segment, extent


class PendingFusions:
    """A graph, and fusions of it that are not made yet.

    A fusion is legal by what lies between its members. Those that come one after the other can
    be judged by the graph as it was; one that reaches back has those before it made first.
    """

    def __init__(self, graph: Graph) -> None:
        self._edit = Edit(graph)
        self._end: tuple[float, ...] = ()

    def graph_around(self, groups: Sequence[Sequence[Op]]) -> Graph:
        """Return a graph in which nothing is left to be made between the members of some groups.

        Raises ``ValueError`` where a member is not there any more.
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
        """Collect what ``irgraph.verbs.fuse.put_in_place`` does; the graph is the one before.

        Raises ``RefusedError`` as that does, ``ValueError`` as ``graph_around`` does.
        """
        graph = self.graph_around(groups)
        fusion = collect(
            self._edit, groups, new, caller=caller, assuming=assuming, known_segment=known_segment
        )
        self._end = extent(graph, (op for group in groups for op in group)).end
        return fusion

    def commit(self) -> Graph:
        """Make all that was collected, and return the graph."""
        graph = self._edit.commit()
        if graph is not self._edit.graph:
            self._edit, self._end = Edit(graph), ()
        return graph
