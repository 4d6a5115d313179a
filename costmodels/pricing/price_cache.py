"""Prices that stay with their ops: of a graph made from another, only what is new is priced.

An op never changes, and its price depends on nothing but the op itself and the machine. There are
three exceptions, which are priced anew: sparse operands and FBGEMM's autograd nodes, of which the
rest of the graph tells, and collectives and reads of tiers, whose curves are in files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TypeAlias

from costmodels.families import rules
from costmodels.formulas.machine import Machine
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.ranks import EXCHANGE_PREFIXES, is_collective
from irgraph.ir.tensor import Tensor

Outcome: TypeAlias = "tuple[tuple[Kernel, ...] | None, bool]"
"""An op's work, ``None`` where it is that of the ops inside; and whether no model knows it."""

CACHE_KEY = "costmodels.pricing.price_cache"
"""Where an op keeps its prices, beside what else was worked out of it."""

MAX_MACHINES = 32
"""Machines for which an op keeps its price, and which are known again."""

MAX_CALLS = 8192
"""Calls whose prices are remembered beside, for ops that differ in names alone."""

_CALLS: dict[object, tuple[Kernel, ...] | None] = {}

TIER_OP_PREFIX = "irgraph.tier_"
"""How the names of ops begin that read files of tiers."""

FILE_OP_PREFIXES = (TIER_OP_PREFIX, *EXCHANGE_PREFIXES)
"""How the names of all ops begin that may read files."""


class MachineTokens:
    """The machines for which ops keep prices; each has a token that stands for it."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, object] = OrderedDict()
        self._lock = Lock()

    def token(self, machine: Machine, measured: bool, loose: bool) -> object:
        """Return what stands for all machines like this one, and for two ways of pricing."""
        indices = machine.indices
        laws = (indices.by_buffer, indices.default, indices.bags_by_buffer, indices.default_bags)
        said = (
            machine.sheet,
            machine.software,
            machine.mode,
            machine.pinned,
            tuple(machine.learned),
            laws,
            measured,
            loose,
            rules(),
        )
        with self._lock:
            for token, known in self._known.items():
                if known == said:
                    self._known.move_to_end(token)
                    return token
            token = object()
            self._known[token] = said
            if len(self._known) > MAX_MACHINES:
                self._known.popitem(last=False)
            return token


_MACHINES = MachineTokens()


class PriceCache:
    """Finds the prices that ops of a graph keep, and lets them keep new ones."""

    def __init__(
        self,
        machine: Machine,
        sparse: Mapping[str, Tensor],
        lookups: Mapping[int, Op],
        measured: bool,
        loose: bool,
    ) -> None:
        """Take what ``Pricer`` takes."""
        self.token = _MACHINES.token(machine, measured, loose)
        self.sparse, self.lookups = sparse, lookups

    def of(self, op: Op, ask: Callable[[Op], Outcome]) -> Outcome:
        """Return an op's outcome: one it keeps, or else what ``ask`` says."""
        kept: dict[object, Outcome] | None = op.__dict__.get(CACHE_KEY)
        if kept is None:
            kept = op.__dict__[CACHE_KEY] = {}
        if (self.sparse or self.lookups) and self._told(op):
            return ask(op)
        found = kept.get(self.token)
        if found is None:
            found = ask(op)
            # what is priced by the ops inside it was asked of its own rule alone
            if not (_is_priced_from_files(op) if found[0] is None else _reads_files(op)):
                if len(kept) >= MAX_MACHINES:
                    kept.clear()
                kept[self.token] = found
        return found

    def like(
        self, op: Op, signature: object, ask: Callable[[], tuple[Kernel, ...] | None]
    ) -> tuple[Kernel, ...] | None:
        """Return what ``ask`` says of an op, or said of one with this signature."""
        if _reads_files(op):
            return ask()
        key = (self.token, signature)
        try:
            return _CALLS[key]
        except KeyError:
            found = _CALLS[key] = ask()
        if len(_CALLS) > MAX_CALLS:
            _CALLS.pop(next(iter(_CALLS)), None)
        return found

    def _told(self, op: Op) -> bool:
        """Return whether the price of an op depends on the rest of its graph."""
        return any(
            id(inner) in self.lookups or any(t.name in self.sparse for t in inner.inputs)
            for inner in op.walk()
        )


def _reads_files(op: Op) -> bool:
    """Return whether the price of an op, or of one inside it, is looked up in a file."""
    return any(map(_is_priced_from_files, op.walk())) if op.body else _is_priced_from_files(op)


def _is_priced_from_files(op: Op) -> bool:
    name = op.name
    return name.startswith(FILE_OP_PREFIXES) and (
        name.startswith(TIER_OP_PREFIX) or is_collective(op)
    )
