"""Regions of consecutive ops that one call of compiled code can replace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from irgraph.ir.dependence import EVENTS
from irgraph.ir.effects import effects, returns_operand, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import is_collective
from irgraph.ops.live_out import is_label, reads_on_host
from irgraph.verbs.capture import sized
from irgraph.verbs.compiled.names import CALL
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.streams import works

MIN_LAUNCHES = 2
"""Minimum number of ops that launch work in a call."""
ACCUMULATE = "autograd.AccumulateGrad"


@dataclass
class Accesses:
    """Names that ops make, buffers that they read, and buffers that they write."""

    names: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def add(self, unit: Op) -> None:
        """Add the accesses of an op, or of the ops that it calls."""
        for leaf in unit.leaves():
            self.names.update(t.name for t in leaf.outputs)
            self.read.update(t.buffer for t in leaf.inputs)
            self.written.update(t.buffer for t in written_by(leaf))

    def blocks(self, unit: Op) -> bool:
        """Return whether an op must remain after these."""
        unit_accesses = Accesses()
        unit_accesses.add(unit)
        return bool(
            self.names
            & ({t.name for leaf in unit.leaves() for t in leaf.inputs} | unit_accesses.names)
            or self.written & (unit_accesses.read | unit_accesses.written)
            or self.read & unit_accesses.written
        )


@dataclass
class Region:
    """Consecutive ops that become one call, and autograd's ops between them that can follow it."""

    units: list[Op] = field(default_factory=list)
    later: list[Op] = field(default_factory=list)
    _passed: Accesses = field(default_factory=Accesses)

    @property
    def leaves(self) -> list[Op]:
        """The ops that compute something, in order."""
        leaves = [leaf for unit in self.units for leaf in unit.leaves()]
        return [leaf for leaf in leaves if not is_label(leaf) and not returns_operand(leaf)]

    def defer(self, op: Op) -> None:
        """Defer an op until after the region, regardless of later ops of the region."""
        self.later.append(op)
        self._passed.add(op)

    def accepts(self, unit: Op) -> bool:
        """Return whether a unit may follow the region's ops and run before the deferred ones."""
        if self.units and _lane(unit) != _lane(self.units[0]):
            return False
        return not self._passed.blocks(unit)


def _lane(unit: Op) -> tuple[str, str, str]:
    """Return thread, stream and phase of an op, or of the first op that it calls."""
    leaf = next(leaf for leaf in unit.leaves() if works(leaf) or leaf.outputs)
    return leaf.thread, leaf.stream, leaf.phase


class RegionSearch:
    """The search for regions; ``excluded`` lists ops that are in none, with reasons."""

    def __init__(self, graph: Graph, requested: Collection[Op] | None) -> None:
        self.requested = requested
        self.declared = declared(graph)
        self.excluded: dict[Op, tuple[Op, RefusedError]] = {}

    def regions(self, ops: Sequence[Op]) -> Iterator[Region]:
        """Yield regions of consecutive ops; a label that fits in none as a whole is opened."""
        region = Region()
        for op in ops:
            if op.name == ACCUMULATE or not _computes(op):
                region.defer(op)
            elif not _orders(op) and self._fits(op) and region.accepts(op):
                region.units.append(op)
            else:
                yield from _launchable(region)
                region = Region()
                if not _orders(op) and self._fits(op):
                    region.units.append(op)
                elif op.is_annotation:
                    yield from self.regions(op.body)
        yield from _launchable(region)

    def _fits(self, op: Op) -> bool:
        leaves = [leaf for leaf in op.leaves() if not is_label(leaf)]
        if not self._is_requested(op):
            return False
        obstacles = [(leaf, self._obstacle(leaf)) for leaf in leaves]
        for leaf, reason in obstacles:
            if reason:
                self.excluded.setdefault(leaf, (leaf, RefusedError(reason, [(leaf, "")])))
        lanes = {_lane(part) for part in op.leaves() if works(part)}
        return not any(reason for _, reason in obstacles) and len(lanes) <= 1

    def _is_requested(self, op: Op) -> bool:
        if any(inner.name in (CALL, ACCUMULATE) for inner in op.walk()):
            return False
        leaves = [leaf for leaf in op.leaves() if not is_label(leaf)]
        if self.requested is not None:
            requested = self.requested
            return any(inner in requested for inner in op.walk())
        return all(leaf.phase != "optimizer" for leaf in leaves)

    def _obstacle(self, leaf: Op) -> str:
        """Return why an op cannot be part of compiled code, ``""`` if it can."""
        for applies, reason in OBSTACLES:
            if applies(leaf):
                return reason
        if effects(leaf, self.declared).barrier:
            return "its effects are unknown"
        return ""


OBSTACLES: tuple[tuple[Callable[[Op], bool], str], ...] = (
    (reads_on_host, "the host reads it"),
    (lambda leaf: leaf.name.startswith(("sync.", "memcpy.", "cuda.")), "it is not an op of torch"),
    (is_collective, "it communicates"),
    (sized, "the host reads the sizes of its results from the device"),
    (
        lambda leaf: any(t.device == "cpu" for t in (*leaf.inputs, *leaf.outputs)),
        "it works on the host's memory",
    ),
)


def _computes(op: Op) -> bool:
    return _orders(op) or any(works(leaf) or leaf.outputs for leaf in op.leaves())


def _orders(op: Op) -> bool:
    """Return whether an op records an event or waits for one: other ops must not pass it."""
    return any(leaf.name in EVENTS for leaf in op.leaves())


def _launchable(region: Region) -> Iterator[Region]:
    if sum(map(works, region.leaves)) >= MIN_LAUNCHES:
        yield region
