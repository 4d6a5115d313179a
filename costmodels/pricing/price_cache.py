"""A cache of prices in the ops themselves: a rewritten graph prices only its new ops.

An op never changes, and its price depends only on the op and the machine. There are three
exceptions, which are always priced again: sparse operands and FBGEMM's autograd nodes, which depend
on the rest of the graph, and collectives and reads of tiers, whose curves are in files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TypeAlias

from costmodels.families import rules
from costmodels.formulas.machine import Machine
from irgraph.facts import FactTable, facts_of
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.ranks import EXCHANGE_PREFIXES, is_collective
from irgraph.ir.tensor import Tensor

Outcome: TypeAlias = "tuple[tuple[Kernel, ...] | None, bool]"
"""An op's work, ``None`` if its inner ops have it; and whether no model covers it."""

CACHE_KEY = "costmodels.pricing.price_cache"
"""Key of an op's prices among its cached facts."""

MAX_MACHINES = 32
"""Maximum number of machines for which an op caches its price."""

MAX_CALLS = 8192
"""Maximum number of calls with cached prices, for ops that differ in names alone."""

_CALLS = FactTable[object, tuple[Kernel, ...] | None](MAX_CALLS)

TIER_OP_PREFIX = "irgraph.tier_"
"""Prefix of the names of ops that read files of tiers."""

FILE_OP_PREFIXES = (TIER_OP_PREFIX, *EXCHANGE_PREFIXES)
"""Prefixes of the names of all ops that may read files."""


class MachineTokens:
    """The machines for which ops cache prices, each with a token."""

    def __init__(self) -> None:
        self._properties_by_token: OrderedDict[object, object] = OrderedDict()
        self._lock = Lock()

    def token(self, machine: Machine, measured: bool, loose: bool) -> object:
        """Return the token of a machine and of the two pricing flags."""
        indices = machine.indices
        laws = (indices.by_buffer, indices.default, indices.bags_by_buffer, indices.default_bags)
        properties = (
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
            for token, token_properties in self._properties_by_token.items():
                if token_properties == properties:
                    self._properties_by_token.move_to_end(token)
                    return token
            token = object()
            self._properties_by_token[token] = properties
            if len(self._properties_by_token) > MAX_MACHINES:
                self._properties_by_token.popitem(last=False)
            return token


_MACHINES = MachineTokens()


class PriceCache:
    """Cache of the prices of a graph's ops."""

    def __init__(
        self,
        machine: Machine,
        sparse: Mapping[str, Tensor],
        lookups: Mapping[Op, Op],
        measured: bool,
        loose: bool,
    ) -> None:
        """Prepare the cache, with the arguments of ``Pricer``."""
        self.token = _MACHINES.token(machine, measured, loose)
        self.sparse, self.lookups = sparse, lookups

    def outcome_of(self, op: Op, compute: Callable[[Op], Outcome]) -> Outcome:
        """Return an op's cached outcome, or compute and cache it."""
        outcomes: dict[object, Outcome] | None = facts_of(op).get(CACHE_KEY)
        if outcomes is None:
            outcomes = facts_of(op)[CACHE_KEY] = FactTable(MAX_MACHINES)
        if (self.sparse or self.lookups) and self._depends_on_graph(op):
            return compute(op)
        outcome = outcomes.get(self.token)
        if outcome is None:
            outcome = compute(op)
            # inner ops are cached separately: only this op's own rule was consulted
            if not (_is_priced_from_files(op) if outcome[0] is None else _reads_files(op)):
                outcomes[self.token] = outcome
        return outcome

    def kernels_by_signature(
        self, op: Op, signature: object, compute: Callable[[], tuple[Kernel, ...] | None]
    ) -> tuple[Kernel, ...] | None:
        """Return the cached kernels of a signature, or compute and cache them."""
        if _reads_files(op):
            return compute()
        key = (self.token, signature)
        try:
            return _CALLS[key]
        except KeyError:
            kernels = _CALLS[key] = compute()
        return kernels

    def _depends_on_graph(self, op: Op) -> bool:
        """Return whether the price of an op depends on the rest of its graph."""
        return any(
            inner in self.lookups or any(t.name in self.sparse for t in inner.inputs)
            for inner in op.walk()
        )


def _reads_files(op: Op) -> bool:
    """Return whether the price of an op, or of an inner op, is looked up in a file."""
    return any(map(_is_priced_from_files, op.walk())) if op.body else _is_priced_from_files(op)


def _is_priced_from_files(op: Op) -> bool:
    name = op.name
    return name.startswith(FILE_OP_PREFIXES) and (
        name.startswith(TIER_OP_PREFIX) or is_collective(op)
    )
