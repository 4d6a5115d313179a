"""Pricing a graph: the device work of every op, from the outermost op that a family knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costmodels.collectives.peers import peers_of
from costmodels.families import rules
from costmodels.indices import Indices, indices_of
from costmodels.machine import MODES, SMALL, Corrector, Machine, Predictor, traffic
from costmodels.measured import is_measured, measured_kernels, own_time
from costmodels.sheet import DeviceSheet
from costmodels.software import software_profile
from costmodels.stand_in import stand_ins
from irgraph.ir.cost import PROVENANCES, Kernel, Priced
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Note, Op
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import Tensor
from irgraph.text.diagnostics import fail, near

FREE_AUTOGRAD = (
    "AccumulateGrad", "TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward",
    "UnsafeViewBackward", "ReshapeAliasBackward", "ExpandBackward", "SqueezeBackward",
    "UnsqueezeBackward", "CatBackward", "SplitBackward", "SelectBackward", "AliasBackward",
    "DetachBackward", "AddBackward", "SubBackward", "ToCopyBackward", "UnbindBackward",
    "CloneBackward",
)  # fmt: skip
"""Autograd nodes that may well call nothing: they hand on a gradient, or a view of it."""


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
) -> Priced:
    """Return the graph with the kernels of its ops on a device.

    Args:
        graph: a captured or transformed step.
        sheet: the device.
        mode: one of ``costmodels.machine.MODES``.
        software: name of a profile in ``costmodels.software``.
        pinned: whether host tensors lie in pinned memory; ``None`` takes the graph's setting
            ``pinned``, or else pageable memory, which is torch's default.
        learned: trained models by family name.
        indices: how embedding tables are looked up; ``None`` takes what the graph says of it.
        correct: models of the device itself (``costmodels.learned.own``).
        measured: whether measured times of ops (``costmodels.measured``) go before all models; the
            caller knows that they come from this device.

    Raises:
        IrgraphError: ``mode`` or ``software`` is unknown, or what the graph says of its ranks.
    """
    if mode not in MODES:
        known = ", ".join(MODES)
        raise fail(
            f"no pricing mode named {mode!r}{near(mode, MODES)}",
            hint=f"known modes: {known}",
            exit_code=2,
        )
    pins = graph.settings.get("pinned") is True if pinned is None else pinned
    spread = indices_of(graph) if indices is None else indices
    profile = software_profile(software)
    peers = peers_of(graph, sheet.name)
    machine = Machine(sheet, profile, mode, pins, learned or {}, spread, correct, peers)
    pricer = _Pricer(machine, _sparse_values(graph), stand_ins(graph), measured)
    for op in graph.ops:
        pricer.visit(op)
    return Priced(graph, sheet.name, pricer.kernels, tuple(pricer.unknown))


def annotate(priced: Priced) -> Graph:
    """Return the graph with notes ``time`` (with its spread), ``by`` and ``model``.

    Measured notes stay as they are. The others stand on the op that was priced; ``by`` is the
    least certain provenance of its kernels, ``model`` the family of the longest.
    """
    ops = tuple(_noted(op, priced) for op in priced.graph.ops)
    return replace(priced.graph, ops=ops)


def _noted(op: Op, priced: Priced) -> Op:
    kernels = priced.kernels.get(id(op))
    if kernels and all(kernel.by == "measured" for kernel in kernels):
        return op
    if kernels:
        least = max((k.by for k in kernels), key=PROVENANCES.index)
        time, spread = sum(k.time for k in kernels), sum(k.spread for k in kernels)
        notes: dict[str, Note] = {
            "time": Quantity(round(time, 3), "us", round(spread, 3)),
            "by": least,
            "model": max(kernels, key=lambda k: k.time).family,
        }
        return replace(op, notes={**op.notes, **notes})
    body = tuple(_noted(child, priced) for child in op.body)
    changed = any(a is not b for a, b in zip(body, op.body, strict=True))
    return replace(op, body=body) if changed else op


def _times(kernels: tuple[Kernel, ...]) -> list[tuple[float, float]]:
    return [(kernel.time, kernel.spread) for kernel in kernels]


class _Pricer:
    """Walks ops from the outermost in; equal calls are priced once."""

    def __init__(
        self, machine: Machine, sparse: Mapping[str, Tensor], stand_ins: Mapping[int, Op],
        measured: bool,
    ) -> None:  # fmt: skip
        self.machine = machine
        self.sparse = sparse
        self.stand_ins = stand_ins
        self.measured = measured
        self.kernels: dict[int, tuple[Kernel, ...]] = {}
        self.unknown: list[Op] = []
        self._seen: dict[object, tuple[Kernel, ...] | None] = {}

    def visit(self, op: Op) -> None:
        found = self._measured(op) if self.measured else self._known(op)
        if found is not None:
            self.kernels[id(op)] = found
            return
        for child in op.body:
            self.visit(child)
        if op.body:
            return
        if _launches_nothing(op):
            self.kernels[id(op)] = ()
        else:
            self.unknown.append(op)
            self.kernels[id(op)] = (self._guessed(op),)

    def _measured(self, op: Op) -> tuple[Kernel, ...] | None:
        """Return measured work where an op has any itself, else what models know of it."""
        if not is_measured(op, _launches_nothing):
            return self._known(op)
        if own_time(op) is not None and not op.is_annotation:
            return measured_kernels(op, self._known)
        parts = any(own_time(inner) is not None for inner in op.walk())
        return None if parts else self._known(op)

    def _guessed(self, op: Op) -> Kernel:
        """Return a floor for an op that no family knows: its bytes must move once."""
        moved = sum(map(traffic, (*op.inputs, *op.outputs)))
        time = self.machine.stream(moved) + SMALL
        return Kernel(
            f"{op.name}, unknown", "unknown", time, time, "none", outside=True, formula=FLOOR
        )

    def _known(self, op: Op) -> tuple[Kernel, ...] | None:
        op = self.stand_ins.get(id(op), op)
        rule = rules().get(op.name)
        if rule is None:
            return None
        if _on_host(op):
            return ()
        op = self._opened(op)
        key = (_signature(op), self.machine.indices.key(op))
        if key not in self._seen:
            found = rule(op, self.machine)
            if found and self.machine.correct is not None:
                found = self.machine.correct(op, found, self.machine)
            self._seen[key] = found
        return self._seen[key]

    def _opened(self, op: Op) -> Op:
        """Put a sparse operand's values in its place: its own shape says nothing of its size."""
        if not any(isinstance(t, Tensor) and t.name in self.sparse for t in op.operands):
            return op
        opened = (self.sparse.get(t.name, t) if isinstance(t, Tensor) else t for t in op.operands)
        return replace(op, operands=tuple(opened))


def _on_host(op: Op) -> bool:
    """Tell whether all tensors of an op lie on the host, so that no device works."""
    devices = {t.device for t in (*op.inputs, *op.outputs)}
    return devices == {"cpu"}


def _launches_nothing(op: Op) -> bool:
    if op.is_annotation or is_view(op) or _on_host(op):
        return True
    return op.is_autograd and op.base.rstrip("0123456789") in FREE_AUTOGRAD


def _sparse_values(graph: Graph) -> dict[str, Tensor]:
    """Return, by name of each sparse tensor, the tensor of its values."""
    found: dict[str, Tensor] = {}
    for op in graph.walk():
        made = op.outputs[0] if op.outputs else None
        if made is None or made.strides is None or any(made.strides):
            continue
        values = _values_of(op, made)
        if values is not None:
            found[made.name] = values
    return found


def _values_of(op: Op, made: Tensor) -> Tensor | None:
    if op.base.startswith("_sparse_coo_tensor") and len(op.inputs) >= 2:
        return op.inputs[1]
    if op.base == "_embedding_bag_backward" and op.attributes.get("sparse") is True:
        rows = op.inputs[1].numel
        return replace(made, shape=(rows, made.shape[-1]), strides=None)
    return None


def _signature(op: Op) -> tuple[object, ...]:
    """Return what the time of a call depends on: not its names, modules or notes."""
    names: dict[str, int] = {}
    return (
        op.name,
        bool(op.body),
        tuple(_sketch(v, op, names) for v in op.operands),
        tuple(_sketch(v, op, names) for v in op.results),
        tuple((k, _sketch(v, op, names)) for k, v in op.attributes.items()),
    )


def _sketch(value: object, op: Op, names: dict[str, int]) -> object:
    """Describe a value for ``_signature``; which operands are the same tensor matters."""
    if isinstance(value, Tensor):
        which = names.setdefault(value.buffer, len(names))
        same = names.setdefault(value.name, len(names))
        written = value.name in op.written
        return (value.dtype, value.shape, value.strides, value.device, which, same, written)
    if isinstance(value, tuple):
        return tuple(_sketch(item, op, names) for item in value)
    return value
