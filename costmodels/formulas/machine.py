"""The machine that formulas of families use, and the records of their results."""

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
"""Pricing modes. ``corrected`` prices the kernels seen in traces; the others are the paper's
formulas as printed, with embedding tables read from DRAM alone or with its estimate of the cache's
hit rate."""

SMALL = 2.7
"""Microseconds of a kernel that moves almost no bytes: mean over the four V100 traces of DLRM of
2021 of their sigmoids, fills and bias updates (1.3 in the trace of April, 3.0 to 3.3 in the others,
recorded in whole microseconds). It is added to the time at full bandwidth."""

STARTS = {"hopper": 1.5, "blackwell": 1.5}
"""Microseconds of such a kernel by architecture, if they differ: H100 SXM 80 GB under torch 2.11
takes 1.0 to 1.9 us for tiny elementwise kernels with cached data, 1.5 to 2.3 otherwise. Blackwell
is assumed to equal Hopper."""

SMALL_SPREAD = 1.7
"""Half the width of an interval around ``SMALL``, in microseconds: the traces' range."""

Predictor: TypeAlias = Callable[[Mapping[str, float | str]], "ModelEstimate | None"]
"""A trained model: a function from sizes by name to a time, ``None`` if it does not apply."""


class ModelEstimate(Struct, frozen=True):
    """A model's estimate: microseconds, half a 90 % interval, and whether it extrapolates."""

    time: float
    spread: float
    outside: bool = False
    model: str = ""


class Machine(Struct, frozen=True, eq=False):
    """A device with its software, as kernel families see it.

    Attributes:
        sheet: the device.
        software: profile of the kernels that ops launch.
        mode: one of ``MODES``.
        pinned: whether copies to the device come from pinned host memory.
        learned: trained models by family, which take precedence over the family's formula.
        indices: distributions of the indices of embedding tables.
        correct: correction of a family's kernels, trained on this device's measurements.
        peers: participants of collectives, with their links.
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
        """Whether the paper's formulas are requested as printed."""
        return self.mode != "corrected"

    @property
    def start(self) -> float:
        """Microseconds of a kernel that moves almost no bytes."""
        return STARTS.get(self.sheet.architecture, SMALL)

    def stream(self, nbytes: float, share: float = 1.0) -> float:
        """Return microseconds to move bytes at a share of the reachable DRAM bandwidth."""
        return nbytes / (self.sheet.bandwidth * share) / 1e3

    def cycles(self, per_multiprocessor: float) -> float:
        """Return microseconds of a number of clock cycles of every multiprocessor."""
        return per_multiprocessor / self.sheet.clock

    def learned_kernel(self, family: str, name: str, **sizes: float | str) -> Kernel | None:
        """Return the kernel with the estimate of the family's trained model, or else ``None``."""
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
        """Return the kernel of a family with the estimate of a model of another name."""
        kernel = self.learned_kernel(model, name, **sizes)
        return None if kernel is None else replace(kernel, family=family)


Corrector: TypeAlias = Callable[[Op, "tuple[Kernel, ...]", Machine], "tuple[Kernel, ...]"]
"""A model of one device: a function from an op's kernels by formula to calibrated kernels."""

Rule: TypeAlias = Callable[[Op, Machine], "tuple[Kernel, ...] | None"]
"""A function from an op to its kernels, ``None`` if the family does not cover this form of it."""


def no_kernels(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Return no kernel: the rule of ops that launch nothing in any form."""
    return ()


def distinct_elements(tensor: Tensor) -> int:
    """Return the number of distinct elements of a tensor: an expanded axis repeats them."""
    return tensor.distinct


def traffic(*tensors: Tensor) -> int:
    """Return the bytes of tensors' distinct elements."""
    return sum(distinct_elements(tensor) * tensor.itemsize for tensor in tensors)


def members(value: Value) -> list[Tensor]:
    """Return the tensors of a list, such as an op's operands, without those of nested lists."""
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []


def shape_text(tensor: Tensor) -> str:
    """Return sizes in the form ``2048x1024``, ``1`` for a scalar."""
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
        name: name of the kernel, with its sizes.
        time: microseconds.
        error: half a 90 % interval as a share of the time; ``SMALL_SPREAD`` is added to it.
        formula: equation or table, with its source.
        launch: see ``Kernel``.
        blocking: see ``Kernel``.
        outside: see ``Kernel``.
        link_bytes: see ``Kernel``.
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
