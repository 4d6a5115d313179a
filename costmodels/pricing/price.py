"""Pricing a graph: the device work of every op, from the outermost op that a family knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from costmodels.collectives.peers import peers_of
from costmodels.devices.sheet import DeviceSheet
from costmodels.families import rules
from costmodels.formulas.machine import MODES, SMALL, Corrector, Machine, Predictor, Rule, traffic
from costmodels.formulas.software import software_profile
from costmodels.learned.query_batch import BatchedModels, PendingEstimateError
from costmodels.lookups.indices import Indices, indices_of
from costmodels.pricing.calls import CallTimes, as_call, with_time
from costmodels.pricing.context import fbgemm_lookups, sparse_values
from costmodels.pricing.measured import is_measured, measured_kernels
from costmodels.pricing.price_cache import Outcome, PriceCache
from costmodels.pricing.signature import Signatures
from irgraph.diagnostics import fail, suggestion
from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.measured import op_time
from irgraph.ir.op import Op
from irgraph.ir.ranks import is_collective
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ir.verify import OPERANDS

FREE_AUTOGRAD = (
    "AccumulateGrad", "TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward",
    "UnsafeViewBackward", "ReshapeAliasBackward", "ExpandBackward", "SqueezeBackward",
    "UnsqueezeBackward", "CatBackward", "SplitBackward", "SelectBackward", "AliasBackward",
    "DetachBackward", "AddBackward", "SubBackward", "ToCopyBackward", "UnbindBackward",
    "CloneBackward", "_FromTorchTensorBackward", "_ToTorchTensorBackward",
)  # fmt: skip
"""Autograd nodes that may call nothing: they pass on a gradient, or a view of it."""

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
    keep: bool = False,
) -> Priced:
    """Return the graph with the kernels of its ops on a device.

    Args:
        graph: a captured or transformed step.
        sheet: the device.
        mode: one of ``costmodels.formulas.machine.MODES``.
        software: name of a profile in ``costmodels.formulas.software``.
        pinned: whether host tensors are in pinned memory; ``None`` takes the graph's setting
            ``pinned``, or else pageable memory, which is torch's default.
        learned: trained models by family name.
        indices: how embedding tables are looked up; ``None`` takes the graph's own setting.
        correct: models of the device itself (``costmodels.learned.correction``).
        measured: whether measured times of ops (``costmodels.pricing.measured``) go before all
            models; the caller knows that they come from this device.
        calls: times of single calls, measured on this device; they go before all models.
        keep: whether ops keep their prices for other graphs that have them, too; ``learned`` are
            then the models that ship.

    Raises:
        IrgraphError: ``mode`` or ``software`` is unknown, or the graph's setting of its ranks.
    """
    lookups = indices_of(graph) if indices is None else indices
    machine = machine_of(graph, sheet, mode, software, pinned, learned or {}, lookups, correct)
    context = sparse_values(graph), fbgemm_lookups(graph), measured, OPERANDS in graph.settings
    kept = PriceCache(machine, *context) if keep and correct is None and not calls else None
    pricer = Pricer(machine, *context, calls or {}, kept=kept)
    pricer.price(graph.ops)
    reasons = {id(op): machine.peers.lacks(op) for op in pricer.unknown if is_collective(op)}
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

    Raises ``IrgraphError`` where ``mode`` or ``software`` is unknown.
    """
    if mode not in MODES:
        message = f"no pricing mode named {mode!r}{suggestion(mode, MODES)}"
        raise fail(message, hint=f"known modes: {', '.join(MODES)}", exit_code=2)
    pins = graph.settings.get("pinned") is True if pinned is None else pinned
    peers = peers_of(graph, sheet.card)
    profile = software_profile(software)
    return Machine(sheet, profile, mode, pins, learned, indices, correct, peers)


class Pricer:
    """Walks ops from the outermost in; equal calls are priced once."""

    def __init__(
        self,
        machine: Machine,
        sparse: Mapping[str, Tensor],
        lookups: Mapping[int, Op],
        measured: bool,
        loose: bool,
        calls: CallTimes,
        remember: bool = True,
        kept: PriceCache | None = None,
    ) -> None:
        """Take what ``price`` knows of a graph; ``remember`` equal calls unless sizes are many."""
        self.kept = kept
        self.machine = machine
        self.sparse = sparse
        self.lookups = lookups
        self.measured = measured
        self.loose = loose
        self.calls = calls
        self.remember = remember
        self.kernels: dict[int, tuple[Kernel, ...]] = {}
        self.unknown: list[Op] = []
        self._waiting: list[Op] = []
        self._signatures = Signatures()
        self._seen: dict[object, tuple[Kernel, ...] | None] = {}

    def price(self, ops: Sequence[Op]) -> None:
        """Price ops in order; what trained models are asked is asked at once."""
        learned = self.machine.learned
        if isinstance(learned, BatchedModels):
            learned.together.collect()
        try:
            for op in ops:
                self.visit(op)
        finally:
            if isinstance(learned, BatchedModels):
                learned.together.answer()
        for op in self._waiting:
            self.visit(op)
        if self._waiting and self._order_may_differ():
            self.kernels, self.unknown, self._waiting = {}, [], []
            self.price(ops)

    def _order_may_differ(self) -> bool:
        """Return whether an op that waited was not priced itself, and so stands at the end."""
        lacking = {id(op) for op in self.unknown}
        return any(id(op) not in self.kernels or id(op) in lacking for op in self._waiting)

    def visit(self, op: Op) -> None:
        """Price an op, or what is inside it: fills ``kernels`` and ``unknown``."""
        kept = self.kept
        try:
            found, lacking = self._outcome(op) if kept is None else kept.of(op, self._outcome)
        except PendingEstimateError:
            self._waiting.append(op)
            self.kernels[id(op)] = ()  # its place
            return
        if found is None:
            self.kernels.pop(id(op), None)
            for child in op.body:
                self.visit(child)
            return
        self.kernels[id(op)] = found
        if lacking:
            self.unknown.append(op)

    def _outcome(self, op: Op) -> Outcome:
        """Return an op's work, ``None`` where it is that inside; and whether none is known."""
        found = None if self._by_calls(op) else self._whole(op)
        if found is not None or op.body:
            return found, False
        if _launches_nothing(op):
            return (), False
        return self._done((self._guessed(op),)), True

    def _by_calls(self, op: Op) -> bool:
        """Return whether an op of a CPU is priced by the calls inside it: all of them are known."""
        if not (self.machine.sheet.is_host and op.body):
            return False
        return all(_launches_nothing(o) or self._whole(o) is not None for o in op.leaves())

    def _whole(self, op: Op) -> tuple[Kernel, ...] | None:
        found = self._measured(op) if self.measured else self._known(op)
        timed = with_time(op, found or (), self.calls) if found != () else None
        return timed or (None if found is None else self._done(found))

    def _done(self, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        """Return an op's kernels as its device runs them: a CPU in one call."""
        return as_call(kernels) if self.machine.sheet.is_host else kernels

    def _measured(self, op: Op) -> tuple[Kernel, ...] | None:
        """Return measured work where an op has any itself, else what models know of it."""
        if not is_measured(op, _launches_nothing):
            return self._known(op)
        if op_time(op) is not None and not op.is_annotation:
            return measured_kernels(op, self._known)
        parts = any(op_time(inner) is not None for inner in op.walk())
        return None if parts else self._known(op)

    def _guessed(self, op: Op) -> Kernel:
        """Return a floor for an op that no family knows: its bytes must move once."""
        moved = traffic(*op.inputs, *op.outputs)
        time = self.machine.stream(moved) + SMALL
        return Kernel(
            f"{op.name}, unknown", "unknown", time, time, "none", outside=True, formula=FLOOR
        )

    def _known(self, op: Op) -> tuple[Kernel, ...] | None:
        op = self.lookups.get(id(op), op)
        rule = rules().get(op.name)
        if rule is None:
            return None
        if _on_host(op):
            return ()
        if self.loose and _lacks_results(op):
            return None
        op = self._opened(op)
        if not self.remember:
            return rule(op, self.machine)
        key = (self._signatures.of(op), self.machine.indices.key(op))
        if key not in self._seen:
            ask = partial(self._by_rule, rule, op)
            self._seen[key] = ask() if self.kept is None else self.kept.like(op, key, ask)
        return self._seen[key]

    def _by_rule(self, rule: Rule, op: Op) -> tuple[Kernel, ...] | None:
        found = rule(op, self.machine)
        if found and self.machine.correct is not None:
            found = self.machine.correct(op, found, self.machine)
        return found

    def _opened(self, op: Op) -> Op:
        """Replace sparse operands by their values: their own shapes do not give their sizes."""
        sparse = self.sparse
        if not sparse or not any(isinstance(t, Tensor) and t.name in sparse for t in op.operands):
            return op
        opened = (self.sparse.get(t.name, t) if isinstance(t, Tensor) else t for t in op.operands)
        return replace(op, operands=tuple(opened))


def _on_host(op: Op) -> bool:
    """Return whether all tensors of an op are on the host, so that no device works."""
    met = False
    for tensor in (*op.inputs, *op.outputs):
        met = tensor.device == "cpu"
        if not met:
            break
    return met


def _lacks_results(op: Op) -> bool:
    """Return whether a trace does not say what an op that copies returns: nothing prices it."""
    return not op.results and op.base in ("clone", "_to_copy", "contiguous") and not op.body


def _launches_nothing(op: Op) -> bool:
    if op.is_annotation or is_view(op) or _on_host(op) or _gave_back(op):
        return True
    return op.is_autograd and op.base.rstrip("0123456789") in FREE_AUTOGRAD


def _gave_back(op: Op) -> bool:
    """Return whether a composite call made nothing: dropout of nothing returns its operand."""
    schemas = schemas_of(op.name)
    idle = not op.outputs and not op.written
    return idle and bool(schemas) and all(schema.composite for schema in schemas)
