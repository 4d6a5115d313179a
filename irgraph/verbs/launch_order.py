"""The order of a graph's ops as one list: what may move, and where it goes."""

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
    """A graph's ops in sequence, those that move kept whole.

    Attributes:
        graph: the graph.
        ops: in launch order; labels, and what else holds some of those that move, are opened.
        found: direct dependences among them, by position.
        members: positions of those that move.
    """

    graph: Graph
    ops: Sequence[Op]
    found: Sequence[Dependence]
    members: tuple[int, ...]

    def position(self, op: Op) -> int:
        """Return where an op stands, or what called it."""
        return next(i for i, o in enumerate(self.ops) if any(inner is op for inner in o.walk()))

    @property
    def labelled(self) -> list[Dependence]:
        """The dependences, those that say most first: bytes before names."""
        return sorted(self.found, key=lambda tie: tie.kind == "def")

    def without(self, passed: Op) -> Sequence[Dependence]:
        """Return the dependences as if an op touched nothing."""
        kept = [i for i, op in enumerate(self.ops) if op is not passed]
        found = dependences([self.ops[i] for i in kept], declared(self.graph))
        return [changed(d, before=kept[d.before], after=kept[d.after]) for d in found]

    def check(self, order: Sequence[int], anchor: int = -1, assuming: str = "") -> Op | None:
        """Refuse an order that crosses a dependence; return the op that was assumed away.

        The error shows the shortest chain from the anchor, or the dependence that is crossed; it
        names every op that crosses one.
        """
        crossed = crossing(order, self.labelled)
        if not crossed:
            return None
        first = crossed[0]
        ends = (first.before, first.after)
        passed = next((self.ops[i] for i in ends if i not in self.members), None)
        others = crossing(order, self.without(passed)) if passed is not None else crossed
        if assuming and not others:
            return passed
        raise self._crossed(others if assuming else crossed, anchor, of_order=not others)

    def _crossed(self, crossed: Sequence[Dependence], anchor: int, of_order: bool) -> CrossedError:
        """Return why an order is refused: the first chain in full, of others the last step."""
        found: dict[int, RefusedError] = {}
        members = set(self.members)
        for tie in crossed:
            moved = tie.after if tie.after in members else tie.before
            if moved in found:
                continue
            pair = (anchor, moved) if anchor < moved else (moved, anchor)
            chain = [] if found or anchor < 0 else shortest_chain(self.labelled, *pair)
            told = describe(chain or [tie], self.ops)
            reason = "this move would cross a dependence"
            found[moved] = RefusedError(reason, told, of_order=of_order)
        return CrossedError([(self.ops[i], why) for i, why in found.items()])

    def moved(self, order: Sequence[int]) -> list[int]:
        """Return the members that stand among other ops than before, in their new order."""
        rank, passed, found = {i: at for at, i in enumerate(self.members)}, 0, []
        for i in order:
            if i not in rank:
                passed += 1
            elif passed != i - rank[i]:
                found.append(i)
        return found

    def arranged(self, order: Sequence[int], after: bool) -> Graph:
        """Return the graph with its ops in another order; only members may have moved.

        What moved stands in the scope of the op before it (``after``), or of the one after it.
        """
        edit = Edit(self.graph)
        moved = set(self.moved(order))
        fixed = [i for i in order if i not in moved]
        passed = 0
        for i in order:
            if i not in moved:
                passed += 1
            elif passed and (after or passed == len(fixed)):
                edit.insert(self.ops[i], after=self.ops[fixed[passed - 1]])
            else:
                edit.insert(self.ops[i], before=self.ops[fixed[passed]])
        for i in moved:
            edit.remove(self.ops[i])
        return edit.commit() if fixed else self.graph


def crossing(order: Sequence[int], found: Sequence[Dependence]) -> list[Dependence]:
    """Return the dependences that an order turns round."""
    place = {i: at for at, i in enumerate(order)}
    return [d for d in found if place[d.before] > place[d.after]]


@cached_per_graph
def declared(graph: Graph) -> frozenset[str]:
    """Return the names of the ops whose schemas the model brings."""
    return frozenset(parse_schema(text).name for text in graph.schemas)


@cached_per_graph
def barriers(graph: Graph) -> Sequence[tuple[int, Op]]:
    """Return the leaves that could do anything, with their places in launch order."""
    brings = declared(graph)
    return [(i, leaf) for i, leaf in enumerate(graph.leaves()) if effects(leaf, brings).barrier]


def line(graph: Graph, members: Collection[Op], nodes: bool = False) -> Line:
    """Return the ops of a graph in a line; a member that a composite op called moves with it.

    Autograd nodes stay whole unless they hold a member, or ``nodes`` says to open them all.
    """
    wanted = {id(op) for op in members}
    ops = [op for outer in graph.ops for op in _atoms(outer, wanted, nodes)]
    held = tuple(i for i, op in enumerate(ops) if any(id(inner) in wanted for inner in op.walk()))
    return Line(graph, ops, dependences(ops, declared(graph)), held)


def _atoms(op: Op, members: Collection[int], nodes: bool) -> Iterator[Op]:
    opened = op.is_annotation or (op.is_autograd and (nodes or _holds(op, members)))
    if id(op) in members or not op.body or not opened:
        yield op
        return
    for child in op.body:
        yield from _atoms(child, members, nodes)


def _holds(op: Op, members: Collection[int]) -> bool:
    return any(id(inner) in members for inner in op.walk())


def beside(s: Line, anchor: int, after: bool) -> list[int]:
    """Return the order in which members stand before, or after, one op."""
    moved = [i for i in s.members if i != anchor and (i < anchor if after else i > anchor)]
    rest = [i for i in range(len(s.ops)) if i not in set(moved)]
    cut = rest.index(anchor) + after
    return [*rest[:cut], *moved, *rest[cut:]]


def extreme(s: Line, earliest: bool) -> list[int]:
    """Return the order in which each member stands as early, or as late, as it may.

    Members that could stand in one place keep their order.
    """
    ties: dict[int, list[int]] = {}
    for d in s.found:
        here, there = (d.after, d.before) if earliest else (d.before, d.after)
        ties.setdefault(here, []).append(there)
    beside: dict[int, int] = {}  # the op that stays, behind or before which a member stands
    for i in s.members if earliest else reversed(s.members):
        places = [beside.get(j, j) for j in ties.get(i, ())]
        beside[i] = max(places, default=-1) if earliest else min(places, default=len(s.ops))
    near: dict[int, list[int]] = {}
    for i in s.members:
        near.setdefault(beside[i], []).append(i)
    order: list[int] = []
    for i in range(-1, len(s.ops) + 1):
        itself = [i] * (0 <= i < len(s.ops) and i not in beside)
        order += [*itself, *near.get(i, ())] if earliest else [*near.get(i, ()), *itself]
    return order
