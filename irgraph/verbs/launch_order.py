"""The order of a graph's ops as one list: which may move, and to which positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace as changed

from irgraph.ir.dependence import Dependence, dependences, shortest_chain
from irgraph.ir.edit import Edit
from irgraph.ir.effects import effects
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.schema import parse_schema
from irgraph.verbs.refusal import CrossedError, RefusedError, describe


class Line(Struct, frozen=True):
    """A graph's ops in sequence, with moving ops not split.

    Attributes:
        graph: the graph.
        ops: in launch order; labels and other ops that contain moving ops are opened.
        ties: direct dependences among them, by position.
        members: positions of the moving ops.
    """

    graph: Graph
    ops: Sequence[Op]
    ties: Sequence[Dependence]
    members: tuple[int, ...]

    def position(self, op: Op) -> int:
        """Return the position of an op, or of the op that called it."""
        return next(i for i, o in enumerate(self.ops) if any(inner is op for inner in o.walk()))

    @property
    def labelled(self) -> list[Dependence]:
        """The dependences, the most informative first: bytes before names."""
        return sorted(self.ties, key=lambda tie: tie.kind == "def")

    def without(self, outsider: Op) -> Sequence[Dependence]:
        """Return the dependences as if an op accessed no tensor."""
        positions = [i for i, op in enumerate(self.ops) if op is not outsider]
        remaining = dependences([self.ops[i] for i in positions], declared(self.graph))
        return [changed(d, before=positions[d.before], after=positions[d.after]) for d in remaining]

    def check(self, order: Sequence[int], anchor: int = -1, assuming: str = "") -> Op | None:
        """Refuse an order that crosses a dependence; return the op that was assumed away.

        The error shows the shortest chain from the anchor, or the dependence that is crossed; it
        names every op that crosses one.
        """
        crossings = crossing(order, self.labelled)
        if not crossings:
            return None
        first = crossings[0]
        ends = (first.before, first.after)
        outsider = next((self.ops[i] for i in ends if i not in self.members), None)
        remaining = crossing(order, self.without(outsider)) if outsider is not None else crossings
        if assuming and not remaining:
            return outsider
        raise self._refusal(remaining if assuming else crossings, anchor, of_order=not remaining)

    def _refusal(
        self, crossings: Sequence[Dependence], anchor: int, of_order: bool
    ) -> CrossedError:
        """Return the refusal of an order: the first chain in full, of others the last step."""
        refusals: dict[int, RefusedError] = {}
        members = set(self.members)
        for tie in crossings:
            member = tie.after if tie.after in members else tie.before
            if member in refusals:
                continue
            pair = (anchor, member) if anchor < member else (member, anchor)
            chain = [] if refusals or anchor < 0 else shortest_chain(self.labelled, *pair)
            notes = describe(chain or [tie], self.ops)
            reason = "this move would cross a dependence"
            refusals[member] = RefusedError(reason, notes, of_order=of_order)
        return CrossedError([(self.ops[i], error) for i, error in refusals.items()])

    def moved_members(self, order: Sequence[int]) -> list[int]:
        """Return the members that changed position among the other ops, in their new order."""
        rank, passed_count, result = {i: index for index, i in enumerate(self.members)}, 0, []
        for i in order:
            if i not in rank:
                passed_count += 1
            elif passed_count != i - rank[i]:
                result.append(i)
        return result

    def rearrange(self, order: Sequence[int], after: bool) -> Graph:
        """Return the graph with its ops in another order; only members may have moved.

        Moved ops are placed in the scope of the op before them (``after``), or of the one after
        them.
        """
        edit = Edit(self.graph)
        moved_positions = set(self.moved_members(order))
        fixed = [i for i in order if i not in moved_positions]
        passed_count = 0
        for i in order:
            if i not in moved_positions:
                passed_count += 1
            elif passed_count and (after or passed_count == len(fixed)):
                edit.insert(self.ops[i], after=self.ops[fixed[passed_count - 1]])
            else:
                edit.insert(self.ops[i], before=self.ops[fixed[passed_count]])
        for i in moved_positions:
            edit.remove(self.ops[i])
        return edit.commit() if fixed else self.graph


def crossing(order: Sequence[int], ties: Sequence[Dependence]) -> list[Dependence]:
    """Return the dependences that an order reverses."""
    rank = {i: index for index, i in enumerate(order)}
    return [d for d in ties if rank[d.before] > rank[d.after]]


@cached_per_graph
def declared(graph: Graph) -> frozenset[str]:
    """Return the names of the ops whose schemas the model declares."""
    return frozenset(parse_schema(text).name for text in graph.schemas)


@cached_per_graph
def barriers(graph: Graph) -> Sequence[tuple[int, Op]]:
    """Return the leaves with unknown effects, with their positions in launch order."""
    declared_names = declared(graph)
    return [
        (i, leaf) for i, leaf in enumerate(graph.leaves()) if effects(leaf, declared_names).barrier
    ]


def line(graph: Graph, members: Collection[Op], nodes: bool = False) -> Line:
    """Return the ops of a graph in a line; a member that a composite op called moves with it.

    Autograd nodes are not opened unless they contain a member, or ``nodes`` is set.
    """
    member_set = set(members)
    ops = [op for outer in graph.ops for op in _atoms(outer, member_set, nodes)]
    positions = tuple(
        i for i, op in enumerate(ops) if any(inner in member_set for inner in op.walk())
    )
    return Line(graph, ops, dependences(ops, declared(graph)), positions)


def _atoms(op: Op, members: Collection[Op], nodes: bool) -> Iterator[Op]:
    opened = op.is_annotation or (op.is_autograd and (nodes or _holds(op, members)))
    if op in members or not op.body or not opened:
        yield op
        return
    for child in op.body:
        yield from _atoms(child, members, nodes)


def _holds(op: Op, members: Collection[Op]) -> bool:
    return any(inner in members for inner in op.walk())


def adjacent_order(s: Line, anchor: int, after: bool) -> list[int]:
    """Return the order with all members before, or after, one op."""
    moving = [i for i in s.members if i != anchor and (i < anchor if after else i > anchor)]
    rest = [i for i in range(len(s.ops)) if i not in set(moving)]
    cut = rest.index(anchor) + after
    return [*rest[:cut], *moving, *rest[cut:]]


def extreme_order(s: Line, earliest: bool) -> list[int]:
    """Return the order with each member as early, or as late, as it may be.

    Members with the same position keep their order.
    """
    ties: dict[int, list[int]] = {}
    for d in s.ties:
        member, other = (d.after, d.before) if earliest else (d.before, d.after)
        ties.setdefault(member, []).append(other)
    neighbour_by_member: dict[
        int, int
    ] = {}  # the fixed op after or before which a member is placed
    for i in s.members if earliest else reversed(s.members):
        neighbours = [neighbour_by_member.get(j, j) for j in ties.get(i, ())]
        neighbour_by_member[i] = (
            max(neighbours, default=-1) if earliest else min(neighbours, default=len(s.ops))
        )
    members_by_neighbour: dict[int, list[int]] = {}
    for i in s.members:
        members_by_neighbour.setdefault(neighbour_by_member[i], []).append(i)
    order: list[int] = []
    for i in range(-1, len(s.ops) + 1):
        own_position = [i] * (0 <= i < len(s.ops) and i not in neighbour_by_member)
        order += (
            [*own_position, *members_by_neighbour.get(i, ())]
            if earliest
            else [*members_by_neighbour.get(i, ()), *own_position]
        )
    return order
