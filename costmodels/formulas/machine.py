"""The machine that a family's formulas refer to, and the records of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.collectives.peers import Peers
from costmodels.devices.sheet import DeviceSheet
from costmodels.formulas.software import Software
from costmodels.lookups.indices import Indices
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op, Value
from irgraph.ir.points.point_values import to_int
from irgraph.ir.tensor import Tensor

MODES = ("corrected", "paper", "paper-hit-rate")
"""``corrected`` counts what the traces show; the others are the paper's formulas as printed,
with embedding tables read from DRAM alone or with its estimate of the cache's hit rate."""

SMALL = 2.7
"""Microseconds that a kernel takes which moves next to nothing: mean over the four V100 traces of
DLRM of 2021 of their sigmoids, fills and bias updates (1.3 in the trace of April, 3.0 to 3.3 in the
others, recorded in whole microseconds). It is added to the time at full bandwidth."""

STARTS = {"hopper": 1.5, "blackwell": 1.5}
"""The same where it was measured otherwise: H100 SXM 80 GB under torch 2.11 takes 1.0 to 1.9 us for
element-wise kernels of next to nothing in its cache, 1.5 to 2.3 where that holds other data.
Blackwell is taken as Hopper."""

SMALL_SPREAD = 1.7
"""Half the width of an interval around ``SMALL``, microseconds: the traces' range."""

Predictor: TypeAlias = Callable[[Mapping[str, float | str]], "Answer | None"]
"""A trained model: sizes by name in, a time out; ``None`` where it does not apply."""


class Answer(Struct, frozen=True):
    """A trained model's answer: microseconds, half a 90 % interval, whether it extrapolates."""

    time: float
    spread: float
    outside: bool = False
    model: str = ""


class Machine(Struct, frozen=True, eq=False):
    """A device with its software, as kernel families see it.

    Attributes:
        sheet: the device.
        software: what ops launch.
        mode: one of ``MODES``.
        pinned: whether copies to the device come from pinned host memory.
        learned: trained models by family, asked before a family's own formula.
        indices: how embedding tables are looked up.
        correct: what changes the kernels that a family gives an op, on a device that was measured.
        peers: who takes part in collectives, over which links.
    """

    sheet: DeviceSheet
    software: Software
    mode: str = "corrected"
    pinned: bool = False
    learned: Mapping[str, Predictor] = field(default_factory=dict)
    indices: Indices = field(default_factory=Indices)
    correct: Corrector | None = None
    peers: Peers = field(default_factory=Peers)

    @property
    def paper(self) -> bool:
        """Whether the paper's formulas are asked for as printed."""
        return self.mode != "corrected"

    @property
    def start(self) -> float:
        """Microseconds that a kernel takes which moves next to nothing."""
        return STARTS.get(self.sheet.architecture, SMALL)

    def stream(self, nbytes: float, share: float = 1.0) -> float:
        """Microseconds to move bytes at a share of the reachable DRAM bandwidth."""
        return nbytes / (self.sheet.bandwidth * share) / 1e3

    def cycles(self, per_multiprocessor: float) -> float:
        """Microseconds of so many clock cycles of every multiprocessor."""
        return per_multiprocessor / self.sheet.clock

    def learned_kernel(self, family: str, name: str, **sizes: float | str) -> Kernel | None:
        """Return the kernel as the family's trained model sees it, if there is one for it."""
        if family not in self.learned or 0 in sizes.values():
            return None
        answer = self.learned[family](sizes)
        if answer is None:
            return None
        outside, formula = answer.outside, answer.model
        return Kernel(
            name, family, answer.time, answer.spread, "learned", outside=outside, formula=formula
        )

    def kernel_of_model(
        self, model: str, name: str, family: str, sizes: Mapping[str, float | str]
    ) -> Kernel | None:
        """Return the kernel of a family as a model of another name sees it."""
        kernel = self.learned_kernel(model, name, **sizes)
        return None if kernel is None else replace(kernel, family=family)


Corrector: TypeAlias = Callable[[Op, "tuple[Kernel, ...]", Machine], "tuple[Kernel, ...]"]
"""A model of one device: an op's kernels by formula in, device-calibrated kernels out."""

Rule: TypeAlias = Callable[[Op, Machine], "tuple[Kernel, ...] | None"]
"""A family's answer for an op: its kernels, or ``None`` where the family does not know it."""


def stored(tensor: Tensor) -> int:
    """Return the distinct elements of a tensor: an expanded axis repeats the same ones."""
    return tensor.distinct


def traffic(*tensors: Tensor) -> int:
    """Return the bytes of tensors' distinct elements."""
    return sum(stored(tensor) * tensor.itemsize for tensor in tensors)


def members(value: Value) -> list[Tensor]:
    """Return the tensors of a list, such as an op's operands; lists in it are not opened."""
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []


def shape_text(tensor: Tensor) -> str:
    """Return sizes as in ``2048x1024``, ``1`` for a scalar."""
    return "x".join(f"{to_int(size):d}" for size in tensor.shape) or "1"


def first_tensor(op: Op) -> Tensor | None:
    """Return the first tensor among an op's results, or else among its operands."""
    return next(iter((*op.outputs, *op.inputs)), None)


def work(
    family: str,
    name: str,
    time: float,
    error: float,
    formula: str,
    *,
    launch: str = "kernel",
    blocking: bool = False,
    outside: bool = False,
    link_bytes: float = 0.0,
) -> Kernel:
    """Return a heuristic's kernel.

    Args:
        family: the family's name.
        name: what runs, with its sizes.
        time: microseconds.
        error: half a 90 % interval as a share of the time; ``SMALL_SPREAD`` is added to it.
        formula: equation or table, with its source.
        launch: as in ``Kernel``.
        blocking: as in ``Kernel``.
        outside: as in ``Kernel``.
        link_bytes: as in ``Kernel``.
    """
    spread = error * time + SMALL_SPREAD
    return Kernel(
        name,
        family,
        time,
        spread,
        "heuristic",
        launch,
        blocking,
        outside,
        formula,
        link_bytes=link_bytes,
    )
