"""What ran at the lowest level of torch, next to the model of the same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from irgraph.capture.emulate.communication import current_communication
from irgraph.capture.emulate.environment import Process
from irgraph.capture.emulate.fallbacks import on_device
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.emulate.patches import emulate_cuda
from irgraph.capture.live import capture_file
from irgraph.capture.live.device_calls import recorder
from irgraph.capture.live.target import load_target
from irgraph.ir.effects import UNDECLARED_VIEWS, is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.schedule.memory.peak import ROUND

HOST_WORK = frozenset(
    (
        "detach",
        "detach_",
        "to",
        "lift_fresh",
        "lift_fresh_copy",
        "full",
        "empty",
        "_local_scalar_dense",
        "broadcast_tensors",
        "dropout",
    )
)
"""Operators that launch no kernel, or stand for a literal of the program (``full``).

``dropout`` remains only if it returns its operand: the others are ``native_dropout``."""

EXCHANGES = ("c10d", "_c10d_functional", "fsdp")
"""Libraries whose operators return undeclared operands: the shapes are not compared."""

Launch = tuple[str, tuple[tuple[int, ...], ...]]


@dataclass
class Ran:
    """What a step ran.

    Attributes:
        launches: calls by operator and shapes of new results.
        peak: the largest number of bytes alive on the device after a call.
    """

    launches: Counter[Launch] = field(default_factory=Counter)
    peak: int = 0


class LowestMode(TorchDispatchMode):
    """Counts the calls on a device that no mode above it has answered, and the bytes alive."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.ran = Ran()
        self.storages: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (list, tuple)) else [result]
        base = func._schema.name.partition("::")[2]
        is_launch = func.namespace != "profiler" and base not in HOST_WORK and not _is_view(func)
        if is_launch and on_device([*args, *results], self.device):
            has_shapes = not func._schema.is_mutable and func.namespace not in EXCHANGES
            shapes = (tuple(t.shape) for t in results if isinstance(t, torch.Tensor) and has_shapes)
            self.ran.launches[base, tuple(shapes)] += 1
        self.add_storages([*args, *results])
        comm = current_communication.get()
        if comm is not None:
            del comm.works[:-8]  # torch needs the last ones; the step's memory does not
        self.ran.peak = max(self.ran.peak, self.bytes_alive())
        return result

    def add_storages(self, values: Any) -> None:
        """Add the storages of tensors."""
        for tensor in tensors_in(values):
            if tensor.device.type == self.device and tensor.layout == torch.strided:
                reference = StorageWeakRef(tensor.untyped_storage())
                self.storages.setdefault(reference.cdata, reference)

    def bytes_alive(self) -> int:
        """Return the bytes of all storages that are alive, as torch's allocator rounds them."""
        total = 0
        for address, reference in list(self.storages.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.storages[address]
            else:  # a program may have resized it
                total += -(-storage.nbytes() // ROUND) * ROUND
        return total


def _is_view(func: Any) -> bool:
    """Return whether an operator only returns views of its operands."""
    returns = func._schema.returns
    if func._schema.name.replace("::", ".") in UNDECLARED_VIEWS:
        return True
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def ran_below(target: str, batch: int, device: str, process: Process | None = None) -> Ran:
    """Return what a second step runs, without a recording."""
    with emulate_cuda(device, process):
        values, lowest = KnownValues(), LowestMode(device)
        with recorder.dispatch_mode(None, {}, values):
            step = load_target(target).step(batch, device)
        for _ in range(3):  # the first steps meet the storages that outlast them
            with lowest, recorder.dispatch_mode(None, {}, values):
                lowest.ran = Ran()
                step()
    return lowest.ran


def model_of(target: str, batch: int, device: str, **options: Any) -> Graph:
    """Return the model of the same step."""
    return capture_file(target, batch=batch, device=device, symbolic=False, **options).graph


def launches_of(graph: Graph) -> Counter[Launch]:
    """Return the calls of a model on the device, by operator and shapes of new results."""
    launches: Counter[Launch] = Counter()
    for op in graph.leaves():
        tensors = (*op.inputs, *op.outputs)
        is_launch = not (op.is_scope or op.base in HOST_WORK or is_view(op) or _is_host_copy(op))
        if is_launch and any(tensor.device != "cpu" for tensor in tensors):
            outputs = () if op.name.partition(".")[0] in EXCHANGES else op.outputs
            shapes = tuple(tuple(map(int, tensor.shape)) for tensor in outputs)
            launches[op.base, shapes] += 1
    return launches


def _is_host_copy(op: Op) -> bool:
    """Return whether an op copies to the host, which an emulation answers without a launch."""
    return bool(op.outputs) and all(tensor.device == "cpu" for tensor in op.outputs)
