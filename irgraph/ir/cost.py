"""Records of an operation's device work, its host overheads and the popularity of table rows.

Cost models fill these records; schedulers read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import force_setattr

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

PROVENANCES = ("measured", "scaled", "learned", "heuristic", "none")
"""Sources of a time: a trace of this op on that device; a model, scaled by the measurement of the
op before it changed; a trained model; a formula; none."""

CALL = "call"
"""Launch kind of a kernel that the host runs itself on the calling thread: a CPU's kernel."""

COLLECTIVE = "collective"
"""Family of kernels that exchange data between ranks."""


class Popularity(Struct, frozen=True):
    """A table's rows in groups of nearly equal popularity.

    Attributes:
        counts: rows of each group.
        chances: probability that a lookup reads a given row of each group; the sum of ``counts``
            times ``chances`` is 1.
        description: the distribution and its source, in a few words.
    """

    counts: tuple[float, ...]
    chances: tuple[float, ...]
    description: str = ""

    @property
    def rows(self) -> float:
        """Rows of the table."""
        return sum(self.counts)


class PriceOptions(Struct, frozen=True, kw_only=True):
    """Options of the pricing of ops.

    Attributes:
        mode: formulas of kernels: ``corrected``, or the paper's as printed (``paper``,
            ``paper-hit-rate``).
        software: name of the software profile, which specifies the kernels that ops launch.
        pinned: whether host tensors are in pinned memory; ``None`` uses the model's setting
            ``pinned``, or else pageable memory.
        indices: distributions of embedding lookups: ``uniform``, ``zipf:1.05``,
            ``TABLE=zipf:1.05``, with lengths of bags as in ``zipf:1.05 bags normal:21,35``, or the
            path of a ``.json`` file (a single text counts as a list of one); by default the
            model's setting, or else uniform lookups in bags of one length.
        weights: files of models trained on measurements of the device itself.
        measured: whether measured times of ops are used on the card where they were measured.
    """

    mode: str = "corrected"
    software: str = "torch-2"
    pinned: bool | None = None
    indices: Sequence[str] = ()
    weights: Sequence[str] = ()
    measured: bool = True

    def __post_init__(self) -> None:
        """Convert a single text to a list of one, and other sequences to tuples."""
        for name in ("indices", "weights"):
            texts = getattr(self, name)
            force_setattr(self, name, (texts,) if isinstance(texts, str) else tuple(texts))

    @property
    def uses_measured(self) -> bool:
        """Whether measured times are used: the paper's formulas exclude them."""
        return self.measured and self.mode == "corrected"


class Kernel(Struct, frozen=True, gc=False):
    """One piece of work of a device: a kernel, a copy or a fill.

    Attributes:
        name: the kernel and its sizes, such as ``gemm 2048x1024x512``.
        family: the cost model's family, such as ``gemm`` or ``elementwise``.
        time: duration in microseconds.
        spread: half the width of a 90 % interval around ``time``, in microseconds.
        by: source of the time, one of ``PROVENANCES``.
        launch: kind of launch: ``kernel``, ``memcpy``, ``memset``, or ``call`` if the host runs it
            itself.
        blocking: whether the host waits until it has ended (a copy from pageable memory, or to
            the host).
        outside: whether its sizes are outside the range of the model's training data.
        formula: the equation or table that gave the time, with its source.
        group: process group of a collective, by name.
        peer: the other rank of a point-to-point transfer, by its position in the group, such as
            ``to 2`` or ``from 0``.
        link_bytes: bytes transferred over a link: between host and device, between a slower tier
            and the host, or from this rank to other ranks.
        power: draw of its arithmetic as a share of the device's power limit, at the clock of
            ``time``; 0 if its time does not depend on that clock, or nothing is known.
    """

    name: str
    family: str
    time: float
    spread: float = 0.0
    by: str = "heuristic"
    launch: str = "kernel"
    blocking: bool = False
    outside: bool = False
    formula: str = ""
    group: str = ""
    peer: str = ""
    link_bytes: float = 0.0
    power: float = 0.0


class PowerDraw(Struct, frozen=True):
    """The power of a step whose products run again and again.

    Attributes:
        draw: mean draw of the kernels at the clocks at which they run in isolation, as a share of
            the power limit.
        clock: share of these clocks that the limit allows products in the mix of the step.
        added: microseconds that all kernels take longer than in isolation.
    """

    draw: float
    clock: float = 1.0
    added: float = 0.0


class Priced(Struct, frozen=True):
    """A graph with the device work of its ops.

    Attributes:
        graph: the graph that was priced.
        device: name of the device sheet that was used.
        kernels: the work of each op that a cost model covers, in launch order; an
            op that launches nothing (a view) has an empty tuple. Ops below a priced op have no
            entry.
        unknown: leaves that no cost model covers and that are not views: reported, never free.
        reasons: a specific reason why one of ``unknown`` has no time, if known.
        indices: distributions of embedding lookups with their sources, one line each.
        power: power of the step, ``None`` if the draw of no kernel is known.
    """

    graph: Graph
    device: str
    kernels: Mapping[Op, tuple[Kernel, ...]] = field(default_factory=dict)
    unknown: tuple[Op, ...] = ()
    reasons: Mapping[Op, str] = field(default_factory=dict)
    indices: tuple[str, ...] = ()
    power: PowerDraw | None = None

    def of(self, op: Op) -> tuple[Kernel, ...]:
        """Return the device work of an op and all below it, in launch order."""
        if op in self.kernels:
            return self.kernels[op]
        return tuple(kernel for child in op.body for kernel in self.of(child))


class Overheads(Struct, frozen=True):
    """Host time of one top-level op, in microseconds (the paper's types, section III-C).

    Attributes:
        t1: time between the end of the previous op and its start.
        t2: time from its start to its first launch.
        t3: time from the end of its last launch to its end.
        t4: time of one launch, by ``Kernel.launch``.
        t5: time between two launches; the total time of an op without launches.
        level: granularity of the figures: ``op+shape``, ``op``, ``category`` or ``global``.
        listed: launches recorded for such an op, by ``Kernel.launch``; empty if unknown.
        std: by type (``T1`` to ``T5``), the standard deviation over occurrences, as a share of
            the mean.
    """

    t1: float
    t2: float
    t3: float
    t4: Mapping[str, float]
    t5: float
    level: str = "op"
    listed: tuple[str, ...] = ()
    std: Mapping[str, float] = field(default_factory=dict)


class Host(Protocol):
    """A source of a host's overheads."""

    @property
    def name(self) -> str:
        """Name of the host table."""

    @property
    def machine_std(self) -> float:
        """Relative standard deviation between the step's machine and the table's, 0 for one."""

    def overheads(self, op: Op, launches: int) -> Overheads:
        """Return the overheads of a top-level op that makes this many launches."""
