"""Queries torch's own compiler, Inductor, about the ops that it would fuse on a GPU.

Neither a GPU nor Triton is needed: the ops are traced with fake tensors on a pretended card,
lowered to Inductor's loops, and passed to its scheduler, which decides on fusion before code
generation (``torch/_inductor/scheduler.py``). Only the partition is used; the ops remain the
model's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from unittest import mock

import torch
from msgspec import Struct

from irgraph.capture.common.torch_object import Torch
from irgraph.execute.callables import Computation, computation
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.compiled.trace import decompose, trace
from irgraph.verbs.refusal import RefusedError

CARD = {
    "name": "pretended", "major": 8, "minor": 0, "multi_processor_count": 108, "warp_size": 32,
    "total_memory": 40 << 30, "max_threads_per_multi_processor": 2048, "gcnArchName": "",
    "regs_per_multiprocessor": 65536, "max_threads_per_block": 1024, "L2_cache_size": 40 << 20,
    "shared_memory_per_block": 49152, "shared_memory_per_multiprocessor": 167936,
}  # fmt: skip
"""An A100's limits, by which Inductor sizes reductions."""

UNLOWERED = frozenset({
    "bernoulli", "bernoulli_", "_ctc_loss", "_ctc_loss_backward", "_grouped_mm",
})  # fmt: skip
"""Ops that Inductor refuses on a GPU, that read values, or whose types differ by device."""


class Kernel(Struct, frozen=True):
    """A kernel that Inductor launches.

    Attributes:
        members: positions of the ops that it computes, in the order they were given.
        library: whether it calls a library's kernel, for one op.
    """

    members: tuple[int, ...]
    library: bool


def partition(graph: Graph, leaves: Sequence[Op], used_results: Sequence[Tensor]) -> list[Kernel]:
    """Return the kernels that Inductor would make of ops, in the order of their launches.

    Ops that torch cannot compute on a CPU itself, such as fused attention and ops of passes, are
    treated as a library's: no kernel contains them.

    Args:
        graph: the model that has the ops.
        leaves: ops that torch can trace, in order.
        used_results: their results that are used elsewhere.

    Raises:
        RefusedError: an op cannot be traced or lowered; the message names the cause.
    """
    calls: list[tuple[Op, int, Computation]] = []
    outside_names: set[str] = set()
    for number, op in enumerate(leaves):
        implementation = computation(op, graph)
        if isinstance(implementation, Computation) and _is_traceable(op, implementation):
            calls.append((op, number, implementation))
        else:
            outside_names.update(t.name for t in op.inputs)
    result_by_name = {t.name: t for op, *_ in calls for t in op.outputs}
    needed_names = {*outside_names, *(tensor.name for tensor in used_results)}
    results = [t for name, t in result_by_name.items() if name in needed_names]
    with _fake_card() as fake:
        try:
            lowered, inputs = decompose(*trace(calls, results), fake)
            return list(_schedule(lowered, inputs, fake))
        except Exception as error:
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"torch's compiler fails at the run of ops that it is in: {message}"
            raise RefusedError(reason) from error


def _is_traceable(op: Op, implementation: Computation) -> bool:
    """Return whether an op is torch's own call, and one that Inductor lowers."""
    return isinstance(implementation.call, torch._ops.OpOverload) and op.base not in UNLOWERED


def _schedule(module: Torch, inputs: Sequence[Torch], fake: Torch) -> Iterator[Kernel]:
    """Yield Inductor's kernels of a graph."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import (
        ExternKernelSchedulerNode,
        NopKernelSchedulerNode,
        Scheduler,
    )
    from torch._inductor.virtualized import V

    with V.set_fake_mode(fake):
        lowering = GraphLowering(module, is_inference=True)
        with V.set_graph_handler(lowering), V.set_debug_handler(mock.MagicMock()):
            lowering.run(*inputs)
            scheduler = Scheduler(lowering.operations)
            nodes = [
                node for node in scheduler.nodes if not isinstance(node, NopKernelSchedulerNode)
            ]
            for node in nodes:
                yield _kernel(node, isinstance(node, ExternKernelSchedulerNode))


def _kernel(scheduled: Torch, library: bool) -> Kernel:
    """Return the kernel of a node of Inductor's schedule."""
    parts = scheduled.get_nodes()
    origins = {origin for part in parts for origin in _origins(part.node, library)}
    tags = {origin.meta["op"] for origin in origins if "op" in origin.meta}
    return Kernel(tuple(sorted(tags)), library)


def _origins(node: Torch, library: bool) -> Sequence[Torch]:
    """Return the traced calls that a scheduled node computes; a library computes one."""
    if not library:
        return list(node.get_origins())
    return [node.get_origin_node()] if node.get_origin_node() is not None else []


@contextlib.contextmanager
def _fake_card() -> Iterator[Torch]:
    """Patch torch to report a card and Triton; nothing may be run on them meanwhile."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config, scheduler
    from torch._subclasses.fake_tensor import FakeTensorMode

    card = SimpleNamespace(**CARD)
    answers: list[tuple[object, str, Callable[..., object]]] = [
        (scheduler, "has_triton", lambda *_: True),
        (torch.cuda, "get_device_properties", lambda *_: card),
        (torch.cuda, "get_device_capability", lambda *_: (card.major, card.minor)),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "is_available", lambda: True),
        (CudaInterface, "get_device_properties", staticmethod(lambda *_: card)),
        (CudaInterface, "get_compute_capability", staticmethod(lambda *_: "80")),
        (CudaInterface.Worker, "get_device_properties", staticmethod(lambda *_: card)),
    ]
    with contextlib.ExitStack() as stack:
        fake = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, answer))
        stack.enter_context(config.patch(layout_optimization=False))
        stack.enter_context(torch.no_grad())
        log = logging.getLogger("torch._inductor")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        yield fake
