"""Collectives of a captured process: their group, their stream, and the waits for them.

NCCL runs an asynchronous collective on a stream of its group, which first waits for the issuing
stream; a synchronous one runs on the issuing stream. Here each call is described accordingly, and
the work that it returns records a mark where the program waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from types import FrameType

from irgraph.capture.common.streams import IssuedCollective
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.fallbacks import on_device
from irgraph.capture.emulate.streams import mark
from irgraph.ir.ranks import PEERS

FUNCTIONAL, WAIT = "_c10d_functional", "_c10d_functional::wait_tensor"
WRAP = "_c10d_functional::_wrap_tensor_autograd"
"""Operator that wraps a collective's result in a tensor that is awaited at its first use."""

BARRIER = "c10d::barrier"
UNAWAITED = "{} collectives are not waited for within the step: its end waits for them"

API = "torch.distributed.distributed_c10d"

current_communication: ContextVar[Communication | None] = ContextVar(
    "current_communication", default=None
)
"""The communication of the current capture."""


@dataclass(slots=True)
class Communication:
    """The process groups of a capture, and its collectives that were not awaited yet.

    Attributes:
        notes: sentences about the capture.
        started: whether the program started a process group.
        has_pipeline: whether it ran a pipeline, whose micro-batches have fixed sizes.
        groups: the ranks of each group with a collective, by the group's name.
        current: the collective that is being called.
        recording: whether calls are being recorded.
        pending: number of the collective that will fill a tensor, by the address of its memory.
        pending_at_end: the same for collectives that ``DistributedDataParallel`` waits for at the
            end of backward.
        unawaited: the numbers of collectives that were not awaited yet.
        works: works that calls returned; this keeps their Python parts alive, which torch does not.
        reducers: rebuild functions of ``DistributedDataParallel``, by the reducer.
    """

    notes: dict[str, None]
    started: bool = False
    has_pipeline: bool = False
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    current: IssuedCollective | None = None
    recording: bool = False
    pending: dict[int, str] = field(default_factory=dict)
    pending_at_end: dict[int, str] = field(default_factory=dict)
    unawaited: dict[str, None] = field(default_factory=dict)
    works: list[Torch] = field(default_factory=list)
    reducers: dict[Torch, Torch] = field(default_factory=dict)
    _finishing: bool = False
    _numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def record_collectives(self) -> Iterator[None]:
        """Describe the collectives that are called within the context."""
        for collection in (self.pending, self.pending_at_end, self.unawaited, self.works):
            collection.clear()
        self.recording = True
        try:
            yield
        finally:
            self.recording, self.current = False, None
        if self.unawaited:
            self.notes[UNAWAITED.format(len(self.unawaited))] = None

    def issue(self, func: Torch, arguments: Sequence[Torch]) -> IssuedCollective | None:
        """Return the description of a call if it is a collective; arguments in schema order."""
        value_by_name = dict(zip((a.name for a in func._schema.arguments), arguments, strict=True))
        self.current = None
        if func._schema.name == WAIT or not {"process_group", "group_name"} & value_by_name.keys():
            return None
        group = _group(value_by_name)
        blocks = func._schema.name == BARRIER
        on_group_stream = (
            bool(value_by_name.get("async_op", True))
            and not blocks
            and on_device(arguments, "meta")
        )
        number, direction = f"c{next(self._numbers)}", _direction(func._schema.name, value_by_name)
        self.current = IssuedCollective(
            number, self.group_name(group), on_group_stream, blocks, direction
        )
        if on_group_stream and self.recording:
            self.unawaited[self.current.number] = None
        return self.current

    def required_waits(self, func: Torch, tensors: Sequence[Torch]) -> tuple[str, ...]:
        """Return the numbers of unawaited collectives that a call on ``tensors`` must wait for."""
        if func._schema.name == WAIT:
            return self._pop_numbers(self.pending, tensors)
        return self._pop_numbers(self.pending_at_end, tensors) if self._finishing else ()

    def register_results(self, issued: IssuedCollective, tensors: Sequence[Torch]) -> None:
        """Register tensors as results of a functional collective once it is awaited."""
        self.pending.update((_address(tensor), issued.number) for tensor in tensors)

    def group_name(self, group: Torch) -> str:
        """Return a group's name in the model: ``world``, a mesh's axis, or ``group3``."""
        from torch import distributed as dist

        ranks = tuple(dist.get_process_group_ranks(group))
        name_by_description = {"default_pg": "world", "undefined": "", "": ""}
        desc = name_by_description.get(group.group_desc, group.group_desc).removeprefix("mesh_")
        identifier = "".join(c if c.isalnum() or c == "_" else "_" for c in desc)
        name = identifier or f"group{group.group_name}"
        if self.groups.setdefault(name, ranks) != ranks:
            name = f"{name}_{group.group_name}"
            self.groups[name] = ranks
        return name

    def work(self, tensors: Sequence[Torch]) -> Torch:
        """Return the work that a collective's call returns to its caller, to wait for it."""
        work = _work_class()(self, self.current if self.recording else None, tensors)
        self.works.append(work)
        return work

    def wait_at_backward_end(self, issued: IssuedCollective, tensors: Sequence[Torch]) -> None:
        """Wait for a collective at the end of backward, as ``DistributedDataParallel`` does.

        ``DistributedDataParallel`` waits for each bucket before the bucket is used, in its own
        callback, which torch runs between the two callbacks here.
        """
        from torch.autograd import Variable

        if not self.pending_at_end:
            Variable._execution_engine.queue_callback(self._begin_finishing)
        self.pending_at_end.update((_address(tensor), issued.number) for tensor in tensors)

    def _begin_finishing(self) -> None:
        from torch.autograd import Variable

        self._finishing = True
        Variable._execution_engine.queue_callback(self._end_finishing)

    def _end_finishing(self) -> None:
        for number in self.pending_at_end.values():
            self.wait(number)
        self.pending_at_end.clear()
        self._finishing = False

    def wait(self, number: str) -> None:
        """Mark that the current stream waits for a collective."""
        self.unawaited.pop(number, None)
        mark("wait", number)

    def _pop_numbers(
        self, number_by_address: dict[int, str], tensors: Sequence[Torch]
    ) -> tuple[str, ...]:
        numbers = [number_by_address.pop(_address(tensor), "") for tensor in tensors]
        for number in numbers:
            self.unawaited.pop(number, None)
        return tuple(filter(None, numbers))


def async_result(tensor: Torch) -> Torch:
    """Return a collective's result as on a device; on meta, torch would return a new tensor."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(tensor)


def word_of(value: Torch) -> str | None:
    """Return the IR's word for a group or a reduction in a collective's arguments, or ``None``."""
    comm = current_communication.get()
    kind = value._type().name() if hasattr(value, "_type") else ""
    if kind == "ProcessGroup" and comm is not None and comm.current is not None:
        return comm.current.group
    return _reduction() if kind == "ReduceOp" else None


def _reduction() -> str:
    """Return the reduction of the enclosing call of torch's API; torch's own calls compute sums."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == API and "op" in frame.f_locals:
            return str(frame.f_locals["op"]).rpartition(".")[2].lower()
        frame = frame.f_back
    return "sum"


def _direction(name: str, value_by_name: Mapping[str, Torch]) -> str:
    """Return the suffix of a stream's name for the rank that a call sends to or receives from."""
    direction, rank = PEERS.get(name.replace("::", "."), ("", ""))
    return f"_{direction}_{value_by_name[rank]}" if direction else ""


def _group(value_by_name: Mapping[str, Torch]) -> Torch:
    from torch import distributed as dist
    from torch.distributed import distributed_c10d

    if "process_group" in value_by_name:
        return dist.ProcessGroup.unbox(value_by_name["process_group"])
    return distributed_c10d._resolve_process_group(value_by_name["group_name"])


def _address(tensor: Torch) -> int:
    return int(tensor.untyped_storage()._cdata)


def _work_class() -> Torch:
    """Return the class of the works that collectives return, a subclass of torch's."""
    import torch
    from torch._C._distributed_c10d import Work

    class MarkingWork(Work):
        """A work that records a mark where it is awaited."""

        def __init__(
            self, comm: Communication, issued: IssuedCollective | None, tensors: Torch
        ) -> None:
            super().__init__()
            self.comm, self.issued, self.tensors = comm, issued, tensors

        def wait(self, timeout: Torch = None) -> bool:
            if self.issued is not None and self.issued.on_group_stream:
                self.comm.wait(self.issued.number)
            return True

        def is_completed(self) -> bool:
            return True

        def get_future(self) -> Torch:
            future = torch.futures.Future()
            future.set_result(self.tensors)
            in_backward = torch._C._current_graph_task_id() >= 0
            if self.issued is not None and self.issued.on_group_stream and in_backward:
                self.comm.wait_at_backward_end(self.issued, self.tensors)
            return future

    return MarkingWork
