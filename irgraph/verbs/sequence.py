"""Segments of a graph's ops with their dependences: legality and position of merged ops."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from irgraph.ir.dependence import Dependence, dependences, shortest_chain
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import parse_schema


class Segment(Struct, frozen=True):
    """All leaves from the first to the last unit that contains a member; members are not split.

    Attributes:
        scope: the innermost op around all members, ``None`` for the graph itself.
        units: the ops directly below ``scope``, in launch order.
        atoms: leaves and members in launch order.
        unit: for each atom, the position of its unit in ``units``.
        owner: for each atom, the group that contains it; -1 for an outsider.
        ties: direct dependences among the atoms, by position.
    """

    scope: Op | None
    units: Sequence[Op]
    atoms: Sequence[Op]
    unit: Sequence[int]
    owner: Sequence[int]
    ties: Sequence[Dependence]


class Extent(Struct, frozen=True):
    """The part of a graph that contains some ops.

    Attributes:
        path: positions from the graph's ops down to the innermost scope around all of them.
        scope: that scope, ``None`` for the graph itself.
        units: the ops directly below it.
        first, last: positions in ``units`` of the first and the last that contains one of the ops.
    """

    path: tuple[int, ...]
    scope: Op | None
    units: Sequence[Op]
    first: int
    last: int

    @property
    def start(self) -> tuple[float, ...]:
        """Mark before everything inside, comparable with the marks of others."""
        return (*self.path, self.first)

    @property
    def end(self) -> tuple[float, ...]:
        """Mark after everything inside."""
        return (*self.path, self.last, math.inf)


def extent(graph: Graph, members: Iterable[Op]) -> Extent:
    """Return the extent of some ops; raise ``ValueError`` if one is no op of this graph."""
    try:
        paths = [graph.paths[op] for op in members]
    except KeyError:
        raise ValueError("the members are no ops of this graph") from None
    low, high = min(paths), max(paths)
    depth = next(
        (i for i, pair in enumerate(zip(low, high, strict=False)) if len(set(pair)) > 1),
        len(low) - 1,
    )
    scope: Op | None = None
    units: Sequence[Op] = graph.ops
    for i in low[:depth]:
        scope, units = units[i], units[i].body
    return Extent(low[:depth], scope, units, low[depth], high[depth])


def segment(graph: Graph, groups: Sequence[Collection[Op]], without: Op | None = None) -> Segment:
    """Return the part of a graph between the members of some groups of ops.

    ``without`` is an op to omit, as if it had no dependences. Raises ``ValueError`` if a member is
    no op of this graph.
    """
    owner = {op: i for i, group in enumerate(groups) for op in group}
    bounds = extent(graph, (op for group in groups for op in group))
    atoms: list[Op] = []
    unit_indices: list[int] = []
    for i in range(bounds.first, bounds.last + 1):
        unit_atoms = [atom for atom in _atoms(bounds.units[i], owner) if atom is not without]
        atoms += unit_atoms
        unit_indices += [i] * len(unit_atoms)
    declared = frozenset(parse_schema(text).name for text in graph.schemas)
    owners = [owner.get(op, -1) for op in atoms]
    ties = dependences(atoms, declared)
    return Segment(bounds.scope, bounds.units, atoms, unit_indices, owners, ties)


def _atoms(op: Op, members: Collection[Op]) -> Iterator[Op]:
    if op in members or not op.body:
        yield op
        return
    for child in op.body:
        yield from _atoms(child, members)


def entangling_chain(s: Segment) -> list[Dependence]:
    """Return a chain that ties the groups, or an empty list if they may become one op.

    The chain leads from a member through outsiders to a member, or from one group directly into
    another.
    """
    reaching_masks = [0] * len(s.atoms)
    for tie in s.ties:
        before, after = s.owner[tie.before], s.owner[tie.after]
        mask = reaching_masks[tie.before] if before < 0 else 1 << before
        if after < 0:
            reaching_masks[tie.after] |= mask
        elif mask and before != after:
            return _chain(s, tie, mask)
    return []


def _chain(s: Segment, last: Dependence, mask: int) -> list[Dependence]:
    outside_ties = [tie for tie in s.ties if s.owner[tie.after] < 0]
    starts = [i for i, owner in enumerate(s.owner) if owner >= 0 and mask >> owner & 1]
    return [*shortest_chain(outside_ties, starts, last.before), last]


class InsertionPoint(Struct, frozen=True):
    """Position of a new op: before or after a unit, with units that must move after it.

    ``reason`` names the op that the new op waits for.
    """

    unit: Op
    after: bool
    moved_units: tuple[Op, ...] = ()
    reason: str = ""


def insertion_point(s: Segment) -> InsertionPoint | list[Dependence]:
    """Return the earliest position of the members' new op at which its operands are available.

    It is never earlier than the first member. If an outsider that must precede it and one that must
    follow it are in the same unit, or tied, that chain is returned instead.
    """
    operand_ties = [t for t in s.ties if s.owner[t.after] >= 0 and s.owner[t.before] < 0]
    first = next(i for i, owner in enumerate(s.owner) if owner >= 0)
    if not operand_ties:
        return InsertionPoint(s.units[s.unit[first]], after=False, reason="at its first member")
    last = max(operand_ties, key=lambda tie: tie.before)
    end = s.unit[last.before]
    later_units, clash = _dependent_units(s, end)
    needed_units = {s.unit[tie.before] for tie in operand_ties}
    if clash or later_units & needed_units:
        return _blocking_ties(s, later_units & needed_units or {end}, operand_ties)
    units = tuple(s.units[i] for i in sorted(later_units))
    name = s.atoms[last.before].name
    return InsertionPoint(
        s.units[end], after=True, moved_units=units, reason=f"after {name}, which it needs"
    )


def _dependent_units(s: Segment, end: int) -> tuple[set[int], bool]:
    """Return the units up to ``end`` that depend on the members, and whether ``end`` is one."""
    dependent_atoms = {i for i, owner in enumerate(s.owner) if owner >= 0}
    units: set[int] = set()
    for tie in s.ties:
        dependent = tie.before in dependent_atoms or s.unit[tie.before] in units
        if s.unit[tie.after] > end or s.owner[tie.after] >= 0 or not dependent:
            continue
        dependent_atoms.add(tie.after)
        if s.owner[tie.before] >= 0 or s.unit[tie.before] != s.unit[tie.after]:
            units.add(s.unit[tie.after])
    return units, end in units


def _blocking_ties(
    s: Segment, units: Collection[int], operand_ties: Sequence[Dependence]
) -> list[Dependence]:
    """Return the two ties that require a unit both before and after the new op."""
    into = [t for t in operand_ties if s.unit[t.before] in units]
    out = [t for t in s.ties if s.unit[t.after] in units and s.owner[t.after] < 0]
    out = [t for t in out if s.owner[t.before] >= 0] or out
    return [*out[:1], *into[:1]]
