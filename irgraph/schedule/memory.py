"""Peak memory of a step from the lifetimes of its buffers.

A buffer lives from the op that makes it to the last that touches it, as reference counting frees
it; what exists before the step (parameters, inputs, optimizer state) and gradients that the
optimizer reads live on to the end. Sizes are rounded up as torch's caching allocator rounds them.
Not in the peak: what libraries and the driver take (``WORKSPACE``, ``CONTEXT``), and fragmentation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
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

    ``rounded`` is the multiple to which sizes are rounded up.
    """
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
    lives = _Lives(graph, device or graph.device)
    count = max(len(lives.leaves), 1)
    changes: dict[str, Ints] = defaultdict(lambda: np.zeros(count + 1, np.int64))
    for buffer, size in lives.sizes.items():
        kept = -(-size // rounded) * rounded
        start, end = lives.born[buffer], lives.dead[buffer]
        changes[lives.kinds[buffer]][start] += kept
        changes[lives.kinds[buffer]][end + 1] -= kept
    return lives.leaves, {kind: np.cumsum(change)[:count] for kind, change in changes.items()}


class _Lives:
    """First and last op of every buffer of a device, with its size and kind."""

    def __init__(self, graph: Graph, device: str) -> None:
        self.leaves = list(graph.leaves())
        self.sizes: dict[str, int] = {}
        self.born: dict[str, int] = {}
        self.dead: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        last = max(len(self.leaves) - 1, 0)
        for declared in graph.tensors:
            tensor = declared.tensor
            if tensor.device == device:
                self._seen(tensor.buffer, tensor.extent[1], 0)
                self.dead[tensor.buffer] = last
                self._name(tensor.buffer, ROLES.get(declared.role, "state"))
        kept = set(self.dead)
        for at, leaf in enumerate(self.leaves):
            mine = [t for t in (*leaf.inputs, *leaf.outputs) if t.device == device]
            for tensor in mine:
                self._seen(tensor.buffer, tensor.extent[1], at)
                if tensor.buffer not in kept:
                    self._touch(tensor.buffer, leaf, at, last)

    def _seen(self, buffer: str, size: int, at: int) -> None:
        self.sizes[buffer] = max(size, self.sizes.get(buffer, 0))
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
