"""Peak memory of a step from the lifetimes of its buffers.

A buffer lives from the op that allocates it to the last that accesses it, as reference counting
frees it; tensors from before the step (parameters, inputs, optimizer state) and gradients that the
optimizer reads live on to the end. Sizes are rounded up as torch's caching allocator rounds them.
Not in the peak: memory of libraries and the driver (``WORKSPACE``, ``CONTEXT``), and fragmentation.
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
from irgraph.ir.points.kernel_regimes import evaluate_size
from irgraph.ir.tensor import Tensor
from irgraph.schedule.tasks import Ints

ROUND = 512
"""Granularity of torch's caching allocator, in bytes."""

WORKSPACE = {
    "hopper": 32 * 2**20, "blackwell": 32 * 2**20, "cdna2": 32 * 2**20, "cdna3": 128 * 2**20,
}  # fmt: skip
"""Bytes of workspace that torch reserves for cuBLAS (``CUBLAS_WORKSPACE_CONFIG`` of ``:4096:8``) or
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
        at: the op that runs at the peak; ``None`` in a step without ops.
        by_kind: bytes allocated there: parameters, inputs, state (of the optimizer, and other
            tensors from before the step), gradients, and activations with all that is temporary.
        before: bytes that exist before the step.
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
    check_device(graph, device)
    if rounded < 1:
        raise fail(f"rounded: give a whole number from 1, not {rounded!r}", exit_code=2)
    leaves, bytes_by_kind = memory_by_op(graph, device, rounded=rounded)
    total = sum(bytes_by_kind.values(), np.zeros(max(len(leaves), 1), np.int64))
    top = int(np.argmax(total))
    before = sum(int(bytes_by_kind[role][0]) for role in ROLES.values() if role in bytes_by_kind)
    peak_op = leaves[top] if leaves else None
    by_kind = {kind: int(values[top]) for kind, values in bytes_by_kind.items() if values[top]}
    return Memory(int(total[top]), peak_op, by_kind, before)


def check_device(graph: Graph, device: str) -> None:
    """Raise ``IrgraphError`` (exit code 2) for a device that a step does not use; ``""`` is any."""
    device_names = {graph.device, "cpu", *(graph_device.name for graph_device in graph.devices)}
    if device and device not in device_names:
        message = f"the model has no device {device!r}{suggestion(device, device_names)}"
        hint = f"its devices: {', '.join(sorted(device_names))}; a card is no device of a model"
        raise fail(message, hint=hint, exit_code=2)


def memory_by_op(
    graph: Graph, device: str = "", *, rounded: int = ROUND
) -> tuple[list[Op], dict[str, Ints]]:
    """Return the innermost ops of a step, and the bytes allocated while each runs, by kind.

    The kinds are those of ``Memory.by_kind``; arguments as for ``peak_memory``.
    """
    lives = Lifetimes(graph, device or graph.device)
    count = max(len(lives.leaves), 1)
    changes: dict[str, Ints] = defaultdict(lambda: np.zeros(count + 1, np.int64))
    for buffer, size in lives.sizes.items():
        rounded_size = -(-size // rounded) * rounded
        start, end = lives.first_op[buffer], lives.last_op[buffer]
        changes[lives.kinds[buffer]][start] += rounded_size
        changes[lives.kinds[buffer]][end + 1] -= rounded_size
    return lives.leaves, {kind: np.cumsum(change)[:count] for kind, change in changes.items()}


class Peaks:
    """Peak memory of a step at many sizes of its dimensions: lifetimes do not depend on them.

    ``device`` is one of the step's (default: its first), ``rounded`` as for ``peak_memory``.
    """

    def __init__(self, graph: Graph, device: str = "", *, rounded: int = ROUND) -> None:
        lives = Lifetimes(graph, device or graph.device)
        self._dims, self._rounded = graph.dims, rounded
        self._count = max(len(lives.leaves), 1)
        self._born = np.array([lives.first_op[name] for name in lives.sizes], np.int64)
        self._after = np.array([lives.last_op[name] + 1 for name in lives.sizes], np.int64)
        self._views = [list(lives.views[name].values()) for name in lives.sizes]

    def bytes_at(self, dims: Mapping[str, Ints]) -> Ints:
        """Return the peak in bytes at every point, ``int64[points]``.

        ``dims`` holds the sizes of some dimensions, ``int64[points]`` each.
        """
        points = len(next(iter(dims.values()))) if dims else 1
        width = max(1, MAX_SUMS // self._count)
        parts = [
            self._chunk_bytes({name: sizes[start : start + width] for name, sizes in dims.items()})
            for start in range(0, points, width)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _chunk_bytes(self, dims: Mapping[str, Ints]) -> Ints:
        points = len(next(iter(dims.values()))) if dims else 1
        sizes: dict[str, Any] = {**self._dims, **dims}
        buffer_bytes = np.zeros((len(self._views), points), np.int64)
        for row, views in zip(buffer_bytes, self._views, strict=True):
            for view in views:
                np.maximum(row, _end(view, sizes), out=row)
        buffer_bytes = -(-buffer_bytes // self._rounded) * self._rounded
        changes = np.zeros((self._count + 1, points), np.int64)
        np.add.at(changes, self._born, buffer_bytes)
        np.subtract.at(changes, self._after, buffer_bytes)
        peaks: Ints = np.cumsum(changes, axis=0)[: self._count].max(axis=0)
        return peaks


MAX_SUMS = 1 << 22
"""Maximum number of sums of bytes in one chunk of ``Peaks``: ops times points."""


def _end(view: Tensor, dims: Mapping[str, Any]) -> Ints:
    """Return one past the last byte that a view may touch (``Tensor.extent``), at every point."""
    shape = [evaluate_size(size, dims) for size in view.shape]
    first, count = evaluate_size(view.offset, dims), math.prod(shape)
    if view.strides is None:
        return np.asarray(first + count * view.itemsize)
    steps = [evaluate_size(step, dims) for step in view.strides]
    last = sum(((size - 1) * step for size, step in zip(shape, steps, strict=True)), start=0)
    return np.where(np.equal(count, 0), first, first + (last + 1) * view.itemsize)


class Lifetimes:
    """First and last op of every buffer of a device, with its size, views and kind.

    ``declared`` holds the buffers from before the step, in order.
    """

    def __init__(self, graph: Graph, device: str) -> None:
        self.leaves = list(graph.leaves())
        self.sizes: dict[str, int] = {}
        self.views: dict[str, dict[int, Tensor]] = {}
        self.first_op: dict[str, int] = {}
        self.last_op: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        last = max(len(self.leaves) - 1, 0)
        for declared in graph.tensors:
            tensor = declared.tensor
            if tensor.device == device:
                self._add_view(tensor, 0)
                self.last_op[tensor.buffer] = last
                self._set_kind(tensor.buffer, ROLES.get(declared.role, "state"))
        self.declared = dict.fromkeys(self.last_op)
        for position, leaf in enumerate(self.leaves):
            device_tensors = [t for t in (*leaf.inputs, *leaf.outputs) if t.device == device]
            for tensor in device_tensors:
                self._add_view(tensor, position)
                if tensor.buffer not in self.declared:
                    self._extend(tensor.buffer, leaf, position, last)

    def _add_view(self, tensor: Tensor, position: int) -> None:
        buffer = tensor.buffer
        self.sizes[buffer] = max(tensor.extent[1], self.sizes.get(buffer, 0))
        self.views.setdefault(buffer, {}).setdefault(id(tensor), tensor)
        self.first_op.setdefault(buffer, position)

    def _set_kind(self, buffer: str, kind: str) -> None:
        """Set the kind of a buffer: the first role counts, even if a view has another."""
        self.kinds.setdefault(buffer, kind)

    def _extend(self, buffer: str, leaf: Op, position: int, last: int) -> None:
        self.last_op[buffer] = max(position, self.last_op.get(buffer, 0))
        producer_phase = self.leaves[self.first_op[buffer]].phase
        if leaf.phase == "optimizer" and producer_phase == "backward":
            self.kinds[buffer] = "gradients"
            self.last_op[buffer] = last
        self._set_kind(buffer, "activations")
