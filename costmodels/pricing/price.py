"""Pricing of a graph: the device work of every op, from the outermost op that a family covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from costmodels.collectives.peers import peers_of
from costmodels.devices.sheet import DeviceSheet
from costmodels.families import rules
from costmodels.formulas.machine import (
    MODES,
    SMALL,
    Corrector,
    Machine,
    Predictor,
    Rule,
    no_kernels,
    traffic,
)
from costmodels.formulas.software import software_profile
from costmodels.learned.query_batch import BatchedModels, PendingEstimateError
from costmodels.lookups.indices import Indices, indices_of
from costmodels.pricing.calls import CallTimes, as_call, with_time
from costmodels.pricing.context import fbgemm_lookups, sparse_values
from costmodels.pricing.measured import is_measured, measured_kernels
from costmodels.pricing.power import with_draw
from costmodels.pricing.price_cache import Outcome, PriceCache
from costmodels.pricing.signature import Signatures
from irgraph.diagnostics import fail, suggestion
from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.effects import is_view, returns_operand
from irgraph.ir.graph import OPERANDS, Graph
from irgraph.ir.measured_times import op_time
from irgraph.ir.op import Op
from irgraph.ir.ranks import is_collective
from irgraph.ir.tensor import Tensor

FREE_AUTOGRAD = (
    "AccumulateGrad", "TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward",
    "UnsafeViewBackward", "ReshapeAliasBackward", "ExpandBackward", "SqueezeBackward",
    "UnsqueezeBackward", "CatBackward", "SplitBackward", "SelectBackward", "AliasBackward",
    "DetachBackward", "AddBackward", "SubBackward", "ToCopyBackward", "UnbindBackward",
    "CloneBackward", "_FromTorchTensorBackward", "_ToTorchTensorBackward",
)  # fmt: skip
"""Autograd nodes that may launch nothing: they return a gradient, or a view of it."""

FLOOR = "no model: its operands and results move once at DRAM bandwidth; a floor, not an estimate"


def price(
    graph: Graph,
    sheet: DeviceSheet,
    *,
    mode: str = "corrected",
    software: str = "torch-2",
    pinned: bool | None = None,
    learned: Mapping[str, Predictor] | None = None,
    indices: Indices | None = None,
    correct: Corrector | None = None,
    measured: bool = False,
    calls: CallTimes | None = None,
    cache_prices: bool = False,
) -> Priced:
    """Return the graph with the kernels of its ops on a device.

    Args:
        graph: a captured or transformed step.
        sheet: the device.
        mode: one of ``costmodels.formulas.machine.MODES``.
        software: name of a profile in ``costmodels.formulas.software``.
        pinned: whether host tensors are in pinned memory; ``None`` selects the graph's setting
            ``pinned``, or else pageable memory, which is torch's default.
        learned: trained models by family name.
        indices: distributions of the indices of embedding tables; ``None`` selects the graph's
            setting.
        correct: corrections trained on the device itself (``costmodels.learned.correctors``).
        measured: whether measured times of ops (``costmodels.pricing.measured``) take precedence
            over all models; the caller knows that they were measured on this device.
        calls: times of single calls, measured on this device; they take precedence over all
            models.
        cache_prices: whether ops cache their prices for other graphs that contain them; ``learned``
            and ``correct`` are then the shipped models.

    Raises:
        IrgraphError: ``mode`` or ``software`` is unknown, or the graph's setting of its ranks.
    """
    lookups = indices_of(graph) if indices is None else indices
    machine = machine_of(graph, sheet, mode, software, pinned, learned or {}, lookups, correct)
    context = sparse_values(graph), fbgemm_lookups(graph), measured, OPERANDS in graph.settings
    price_cache = PriceCache(machine, *context) if cache_prices and not calls else None
    pricer = Pricer(machine, *context, calls or {}, price_cache=price_cache)
    pricer.price(graph.ops)
    reasons = {op: machine.peers.missing_reason(op) for op in pricer.unknown if is_collective(op)}
    return Priced(
        graph, sheet.name, pricer.kernels, tuple(pricer.unknown), reasons, lookups.summary()
    )


def machine_of(
    graph: Graph,
    sheet: DeviceSheet,
    mode: str,
    software: str,
    pinned: bool | None,
    learned: Mapping[str, Predictor],
    indices: Indices,
    correct: Corrector | None,
) -> Machine:
    """Return the machine that prices a graph, with the arguments of ``price``.

    Raises ``IrgraphError`` if ``mode`` or ``software`` is unknown.
    """
    if mode not in MODES:
        message = f"no pricing mode named {mode!r}{suggestion(mode, MODES)}"
        raise fail(message, hint=f"known modes: {', '.join(MODES)}", exit_code=2)
    pins = graph.settings.get("pinned") is True if pinned is None else pinned
    peers = peers_of(graph, sheet.card)
    profile = software_profile(software)
    return Machine(sheet, profile, mode, pins, learned, indices, correct, peers)


class Pricer:
    """Prices ops from the outermost in; equal calls are priced once."""

    def __init__(
        self,
        machine: Machine,
        sparse: Mapping[str, Tensor],
        lookups: Mapping[Op, Op],
        measured: bool,
        loose: bool,
        calls: CallTimes,
        reuse_equal_calls: bool = True,
        price_cache: PriceCache | None = None,
    ) -> None:
        """Prepare to price a graph, with the arguments of ``price``.

        ``reuse_equal_calls``: whether equal calls are priced once; not for sizes of many points.
        """
        self.price_cache = price_cache
        self.machine = machine
        self.sparse = sparse
        self.lookups = lookups
        self.measured = measured
        self.loose = loose
        self.calls = calls
        self.reuse_equal_calls = reuse_equal_calls
        self.kernels: dict[Op, tuple[Kernel, ...]] = {}
        self.unknown: list[Op] = []
        self._pending: list[Op] = []
        self._uncorrected: dict[Op, tuple[Kernel, ...]] = {}
        self._signatures = Signatures()
        self._kernels_by_key: dict[object, tuple[Kernel, ...] | None] = {}

    def price(self, ops: Sequence[Op]) -> None:
        """Price ops in order, with one batch of queries to trained models."""
        pending = self._visit_in_batch(ops)
        all_pending = pending
        while pending:  # a correction queries the formula's time, which may be a network's
            pending = self._visit_in_batch(pending)
            all_pending = [*all_pending, *pending]
        if all_pending and self._order_may_differ(all_pending):
            self.kernels, self.unknown = {}, []
            self.price(ops)

    def _visit_in_batch(self, ops: Sequence[Op]) -> list[Op]:
        """Visit ops, with one batch of queries; return those whose queries were in it."""
        learned, self._pending = self.machine.learned, []
        if not isinstance(learned, BatchedModels):
            for op in ops:
                self.visit(op)
            return []
        learned.batch.start()
        try:
            for op in ops:
                self.visit(op)
        finally:
            learned.batch.run()
        return self._pending

    def _order_may_differ(self, pending: Sequence[Op]) -> bool:
        """Return whether a pending op was not priced as a whole, so its kernels come last."""
        unknown_ids = set(self.unknown)
        return any(op not in self.kernels or op in unknown_ids for op in pending)

    def visit(self, op: Op) -> None:
        """Price an op, or its inner ops: fill ``kernels`` and ``unknown``."""
        price_cache = self.price_cache
        try:
            kernels, is_unknown = (
                self._outcome(op)
                if price_cache is None
                else price_cache.outcome_of(op, self._outcome)
            )
        except PendingEstimateError:
            self._pending.append(op)
            self.kernels[op] = ()  # reserves its position
            return
        if kernels is None:
            self.kernels.pop(op, None)
            for child in op.body:
                self.visit(child)
            return
        self.kernels[op] = kernels
        if is_unknown:
            self.unknown.append(op)

    def _outcome(self, op: Op) -> Outcome:
        """Return an op's work, ``None`` if its inner ops have it; and whether it is unknown."""
        kernels = None if self._is_priced_by_calls(op) else self._op_kernels(op)
        if kernels is not None or op.body:
            return kernels, False
        if _launches_nothing(op):
            return (), False
        return self._as_launched((self._floor_kernel(op),)), True

    def _is_priced_by_calls(self, op: Op) -> bool:
        """Return whether an op of a CPU is priced by its inner calls: all of them have prices."""
        if not (self.machine.sheet.is_host and op.body):
            return False
        return all(_launches_nothing(o) or self._op_kernels(o) is not None for o in op.leaves())

    def _op_kernels(self, op: Op) -> tuple[Kernel, ...] | None:
        modelled = self._measured_or_modelled(op) if self.measured else self._modelled(op)
        if self.calls and modelled != ():
            modelled = with_time(op, modelled or (), self.calls) or modelled
        return modelled and self._as_launched(modelled)

    def _as_launched(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """Return an op's kernels as its device runs them: on a CPU in one call."""
        return as_call(kernels) if self.machine.sheet.is_host else kernels

    def _measured_or_modelled(self, op: Op) -> tuple[Kernel, ...] | None:
        """Return an op's own measured work if it has any, else its work by models."""
        if not is_measured(op, _launches_nothing):
            return self._modelled(op)
        if op_time(op) is not None and not op.is_annotation:
            return measured_kernels(op, self._modelled)
        parts = any(op_time(inner) is not None for inner in op.walk())
        return None if parts else self._modelled(op)

    def _floor_kernel(self, op: Op) -> Kernel:
        """Return a floor for an op that no family covers: its bytes must move once."""
        nbytes = traffic(*op.inputs, *op.outputs)
        time = self.machine.stream(nbytes) + SMALL
        return Kernel(
            f"{op.name}, unknown", "unknown", time, time, "none", outside=True, formula=FLOOR
        )

    def _modelled(self, op: Op) -> tuple[Kernel, ...] | None:
        op = self.lookups.get(op, op)
        rule = rules().get(op.name)
        if rule is None:
            return None
        if rule is no_kernels or _on_host(op):
            return ()
        if self.loose and _lacks_results(op):
            return None
        op = self._with_sparse_values(op)
        if not self.reuse_equal_calls:
            return self._by_rule(rule, op)
        key = (self._signatures.signature(op), self.machine.indices.key(op))
        if key not in self._kernels_by_key:
            compute = partial(self._by_rule, rule, op)
            self._kernels_by_key[key] = (
                compute()
                if self.price_cache is None
                else self.price_cache.kernels_by_signature(op, key, compute)
            )
        return self._kernels_by_key[key]

    def _by_rule(self, rule: Rule, op: Op) -> tuple[Kernel, ...] | None:
        correct = self.machine.correct
        kernels = self._uncorrected.get(op) or rule(op, self.machine)
        if not kernels:
            return kernels
        if correct is not None:
            self._uncorrected[op] = kernels  # its correction may wait for the end of the batch
            kernels = correct(op, kernels, self.machine)
        return with_draw(op, kernels, self.machine)

    def _with_sparse_values(self, op: Op) -> Op:
        """Replace sparse operands by their values: shapes of sparse tensors are not their sizes."""
        sparse = self.sparse
        if not sparse or not any(isinstance(t, Tensor) and t.name in sparse for t in op.operands):
            return op
        operands = (self.sparse.get(t.name, t) if isinstance(t, Tensor) else t for t in op.operands)
        return replace(op, operands=tuple(operands))


def _on_host(op: Op) -> bool:
    """Return whether all tensors of an op are on the host: no device has work."""
    for tensors in (op.outputs, op.inputs):
        for tensor in tensors:
            if tensor.device != "cpu":
                return False
    return bool(op.outputs or op.inputs)


def _lacks_results(op: Op) -> bool:
    """Return whether a trace lacks the results of a copying op, which then has no price."""
    return not op.results and op.base in ("clone", "_to_copy", "contiguous") and not op.body


def _launches_nothing(op: Op) -> bool:
    if op.is_annotation or is_view(op) or _on_host(op) or returns_operand(op):
        return True
    return op.is_autograd and op.base.rstrip("0123456789") in FREE_AUTOGRAD
