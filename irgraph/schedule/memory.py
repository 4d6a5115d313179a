"""Peak memory of a step from the lifetimes of its buffers.

A buffer lives from the op that makes it to the last that touches it, as reference counting frees
it; what exists before the step (parameters, inputs, optimizer state) and gradients that the
optimizer reads live on to the end. Sizes are rounded up as torch's caching allocator rounds them.
Not in the peak: what libraries and the driver take (``WORKSPACE``, ``CONTEXT``), and fragmentation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.op import Op
from irgraph.ir.points.pieces import several
from irgraph.ir.tensor import Tensor
from irgraph.schedule.tasks import Ints

ROUND = 512
"""Granularity of torch's caching allocator, in bytes."""

WORKSPACE = {
    "hopper": 32 * 2**20, "blackwell": 32 * 2**20, "cdna2": 32 * 2**20, "cdna3": 128 * 2**20,
}  # fmt: skip
"""Bytes of workspace that torch keeps for cuBLAS (``CUBLAS_WORKSPACE_CONFIG`` of ``:4096:8``) or
hipBLAS, by architecture (torch, CublasHandlePool.cpp)."""

OTHER_WORKSPACE = (2 * 4096 + 8 * 16) * 2**10
"""The same on other architectures (``:4096:2:16:8``)."""

CONTEXT = 512 * 2**20
"""Bytes assumed for the CUDA context and its loaded kernels; not in torch's own figures."""

ROLES = {"param": "parameters", "input": "inputs", "state": "state"}


class Memory(Struct, frozen=True):
    """Memory of a device over a step, in bytes.

    Attributes:
        peak: the maximum allocated at once.
        at: the op at which that is; ``None`` in a step without ops.
        by_kind: what is allocated there: parameters, inputs, state (of the optimizer, and other
            tensors from before the step), gradients, and activations with all that is temporary.
        before: what exists before the step.
    """

    peak: int
    at: Op | None
    by_kind: Mapping[str, int]
    before: int

    def needs(self, architecture: str) -> int:
        """Return the bytes a device of this architecture needs, workspace and context included."""
        return self.peak + workspace(architecture)

    def fits(self, available: int, architecture: str) -> bool:
        """Return whether a device of this architecture with ``available`` bytes holds the step."""
        return self.needs(architecture) <= available


def workspace(architecture: str) -> int:
    """Return the bytes assumed for cuBLAS and the CUDA context; none on a CPU."""
    if architecture == "cpu":
        return 0
    return WORKSPACE.get(architecture, OTHER_WORKSPACE) + CONTEXT


def peak_memory(graph: Graph, device: str = "", *, rounded: int = ROUND) -> Memory:
    """Return the peak memory of a step on one of its devices (default: its first).

    ``rounded`` is the multiple to which sizes are rounded up. Raises ``IrgraphError`` (exit code 2)
    for a device that the step does not use, or a multiple below 1.
    """
    check_graph(graph)
    known = {graph.device, "cpu", *(one.name for one in graph.devices)}
    if device and device not in known:
        message = f"the model has no device {device!r}{suggestion(device, known)}"
        hint = f"its devices: {', '.join(sorted(known))}; a card is no device of a model"
        raise fail(message, hint=hint, exit_code=2)
    if rounded < 1:
        raise fail(f"rounded: give a whole number from 1, not {rounded!r}", exit_code=2)
    leaves, held = memory_by_op(graph, device, rounded=rounded)
    total = sum(held.values(), np.zeros(max(len(leaves), 1), np.int64))
    top = int(np.argmax(total))
    before = sum(int(held[role][0]) for role in ROLES.values() if role in held)
    at = leaves[top] if leaves else None
    by_kind = {kind: int(values[top]) for kind, values in held.items() if values[top]}
    return Memory(int(total[top]), at, by_kind, before)


def memory_by_op(
    graph: Graph, device: str = "", *, rounded: int = ROUND
) -> tuple[list[Op], dict[str, Ints]]:
    """Return the innermost ops of a step, and the bytes allocated while each runs, by kind.

    The kinds are those of ``Memory.by_kind``; arguments as for ``peak_memory``.
    """
    lives = _Lifetimes(graph, device or graph.device)
    count = max(len(lives.leaves), 1)
    changes: dict[str, Ints] = defaultdict(lambda: np.zeros(count + 1, np.int64))
    for buffer, size in lives.sizes.items():
        kept = -(-size // rounded) * rounded
        start, end = lives.born[buffer], lives.dead[buffer]
        changes[lives.kinds[buffer]][start] += kept
        changes[lives.kinds[buffer]][end + 1] -= kept
    return lives.leaves, {kind: np.cumsum(change)[:count] for kind, change in changes.items()}


class Peaks:
    """Peak memory of a step at many sizes of its dimensions: buffers live as long at all of them.

    ``device`` is one of the step's (default: its first), ``rounded`` as for ``peak_memory``.
    """

    def __init__(self, graph: Graph, device: str = "", *, rounded: int = ROUND) -> None:
        lives = _Lifetimes(graph, device or graph.device)
        self._dims, self._rounded = graph.dims, rounded
        self._count = max(len(lives.leaves), 1)
        self._born = np.array([lives.born[name] for name in lives.sizes], np.int64)
        self._after = np.array([lives.dead[name] + 1 for name in lives.sizes], np.int64)
        self._views = [list(lives.views[name].values()) for name in lives.sizes]

    def at(self, dims: Mapping[str, Ints]) -> Ints:
        """Return the peak in bytes at every point, ``int64[points]``.

        ``dims`` holds the sizes of some dimensions, ``int64[points]`` each.
        """
        points = len(next(iter(dims.values()))) if dims else 1
        width = max(1, HELD // self._count)
        parts = [
            self._some({name: sizes[at : at + width] for name, sizes in dims.items()})
            for at in range(0, points, width)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _some(self, dims: Mapping[str, Ints]) -> Ints:
        points = len(next(iter(dims.values()))) if dims else 1
        sizes: dict[str, Any] = {**self._dims, **dims}
        kept = np.zeros((len(self._views), points), np.int64)
        for row, views in zip(kept, self._views, strict=True):
            for view in views:
                np.maximum(row, _end(view, sizes), out=row)
        kept = -(-kept // self._rounded) * self._rounded
        changes = np.zeros((self._count + 1, points), np.int64)
        np.add.at(changes, self._born, kept)
        np.subtract.at(changes, self._after, kept)
        found: Ints = np.cumsum(changes, axis=0)[: self._count].max(axis=0)
        return found


HELD = 1 << 22
"""Sums of bytes that ``Peaks`` holds at once: ops times points."""


def _end(view: Tensor, dims: Mapping[str, Any]) -> Ints:
    """Return one past the last byte that a view may touch (``Tensor.extent``), at every point."""
    shape = [several(size, dims) for size in view.shape]
    first, count = several(view.offset, dims), math.prod(shape)
    if view.strides is None:
        return np.asarray(first + count * view.itemsize)
    steps = [several(step, dims) for step in view.strides]
    last = sum(((size - 1) * step for size, step in zip(shape, steps, strict=True)), start=0)
    return np.where(np.equal(count, 0), first, first + (last + 1) * view.itemsize)


class _Lifetimes:
    """First and last op of every buffer of a device, with its size and kind."""

    def __init__(self, graph: Graph, device: str) -> None:
        self.leaves = list(graph.leaves())
        self.sizes: dict[str, int] = {}
        self.views: dict[str, dict[int, Tensor]] = {}
        self.born: dict[str, int] = {}
        self.dead: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        last = max(len(self.leaves) - 1, 0)
        for declared in graph.tensors:
            tensor = declared.tensor
            if tensor.device == device:
                self._seen(tensor, 0)
                self.dead[tensor.buffer] = last
                self._name(tensor.buffer, ROLES.get(declared.role, "state"))
        kept = set(self.dead)
        for at, leaf in enumerate(self.leaves):
            mine = [t for t in (*leaf.inputs, *leaf.outputs) if t.device == device]
            for tensor in mine:
                self._seen(tensor, at)
                if tensor.buffer not in kept:
                    self._touch(tensor.buffer, leaf, at, last)

    def _seen(self, tensor: Tensor, at: int) -> None:
        buffer = tensor.buffer
        self.sizes[buffer] = max(tensor.extent[1], self.sizes.get(buffer, 0))
        self.views.setdefault(buffer, {}).setdefault(id(tensor), tensor)
        self.born.setdefault(buffer, at)

    def _name(self, buffer: str, kind: str) -> None:
        """Name the kind of a buffer: the first role counts, even if a view has another."""
        self.kinds.setdefault(buffer, kind)

    def _touch(self, buffer: str, leaf: Op, at: int, last: int) -> None:
        self.dead[buffer] = max(at, self.dead.get(buffer, 0))
        made = self.leaves[self.born[buffer]].phase
        if leaf.phase == "optimizer" and made == "backward":
            self.kinds[buffer] = "gradients"
            self.dead[buffer] = last
        self._name(buffer, "activations")
