"""Records of an operation's device work, of its host overheads, and of how tables are looked up.

These records pass between cost models, which fill them, and schedulers, which read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import force_setattr

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

PROVENANCES = ("measured", "scaled", "learned", "heuristic", "none")
"""Where a time can come from: this op in a trace of that device; a model, scaled by what was
measured of the op before it changed; a trained model; a formula; nowhere."""

CALL = "call"
"""How a kernel is launched that the host runs itself, on the thread that calls it: a CPU's."""

COLLECTIVE = "collective"
"""Family of kernels that exchange data between ranks."""


class Popularity(Struct, frozen=True):
    """A table's rows in groups of nearly equal popularity.

    Attributes:
        counts: rows of each group.
        chances: that one lookup takes a given row of the group; ``counts`` times this sums to 1.
        said: the distribution and who says so, in a few words.
    """

    counts: tuple[float, ...]
    chances: tuple[float, ...]
    description: str = ""

    @property
    def rows(self) -> float:
        """Rows of the table."""
        return sum(self.counts)


class PriceOptions(Struct, frozen=True, kw_only=True):
    """How ops are priced.

    Attributes:
        mode: formulas of kernels: ``corrected``, or the paper's as printed (``paper``,
            ``paper-hit-rate``).
        software: name of the software profile, which says what kernels the ops launch.
        pinned: whether host tensors are in pinned memory; ``None`` takes the model's setting
            ``pinned``, or else pageable memory.
        indices: how embedding tables are looked up: ``uniform``, ``zipf:1.05``,
            ``TABLE=zipf:1.05``, how long bags are, as in ``zipf:1.05 bags normal:21,35``, or the
            path of a ``.json`` file (a text alone counts as a list of one); without any, as the
            model says, or else uniformly in bags of one length.
        weights: files of models trained on measurements of the device itself.
        measured: whether measured times of ops are used on the card that they come from.
    """

    mode: str = "corrected"
    software: str = "torch-2"
    pinned: bool | None = None
    indices: Sequence[str] = ()
    weights: Sequence[str] = ()
    measured: bool = True

    def __post_init__(self) -> None:
        """Take a text for a list of one: its letters are no list of texts."""
        for name in ("indices", "weights"):
            texts = getattr(self, name)
            force_setattr(self, name, (texts,) if isinstance(texts, str) else tuple(texts))

    @property
    def uses_measured(self) -> bool:
        """Whether measured times are wanted: the paper's formulas know of none."""
        return self.measured and self.mode == "corrected"


class Kernel(Struct, frozen=True, gc=False):
    """One piece of work of a device: a kernel, a copy or a fill.

    Attributes:
        name: what runs, with its sizes, such as ``gemm 2048x1024x512``.
        family: the cost model's family, such as ``gemm`` or ``elementwise``.
        time: microseconds.
        spread: half the width of a 90 % interval around ``time``, microseconds.
        by: one of ``PROVENANCES``.
        launch: how the host starts it: ``kernel``, ``memcpy``, ``memset``, or ``call`` where the
            host runs it itself.
        blocking: whether the host waits until it has ended (a copy from pageable memory, or to
            the host).
        outside: whether its sizes lie outside what the model has seen.
        formula: the equation or table that gave the time, with its source.
        group: of a collective, the name of its process group.
        peer: of what goes to or comes from one rank alone, that rank's place in the group, such as
            ``to 2`` or ``from 0``.
        link_bytes: bytes that it brings over a link: between host and device, or a slower tier and
            the host, or that this rank sends to others.
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


class Priced(Struct, frozen=True):
    """A graph with the device work of its ops.

    Attributes:
        graph: the graph that was priced.
        device: name of the device sheet that was used.
        kernels: by ``id(op)``, the work of each op that a cost model knows, in launch order; an
            op that launches nothing (a view) has an empty tuple. Ops below a priced op have none.
        unknown: leaves that no cost model knows and that are not views: reported, never free.
        reasons: by ``id(op)``, why one of ``unknown`` has no time, where more is known than that.
        indices: how embedding tables are looked up and who says so, a line for each way.
    """

    graph: Graph
    device: str
    kernels: Mapping[int, tuple[Kernel, ...]] = field(default_factory=dict)
    unknown: tuple[Op, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    indices: tuple[str, ...] = ()

    def of(self, op: Op) -> tuple[Kernel, ...]:
        """Return the device work of an op and all below it, in launch order."""
        if id(op) in self.kernels:
            return self.kernels[id(op)]
        return tuple(kernel for child in op.body for kernel in self.of(child))


class Overheads(Struct, frozen=True):
    """Host time of one top-level op, in microseconds (the paper's types, section III-C).

    Attributes:
        t1: between the end of the op before it and its start.
        t2: from its start to its first launch.
        t3: from the end of its last launch to its end.
        t4: of one launch, by ``Kernel.launch``.
        t5: between two launches; for an op without launches, all of it.
        level: how the figures were found: ``op+shape``, ``op``, ``category`` or ``global``.
        listed: launches that such an op was seen to make, by ``Kernel.launch``; empty if unknown.
        std: by type (``T1`` to ``T5``), the relative standard deviation over occurrences: as a
            share of the mean.
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

    def overheads(self, op: Op, launches: int) -> Overheads:
        """Return the overheads of a top-level op that makes this many launches."""
