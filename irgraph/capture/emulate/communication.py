"""Collectives of a captured process: which group, on which stream, and who waits for them.

NCCL runs an asynchronous collective on a stream of its group, which first waits for the stream that
asked; a synchronous one runs on the stream that asks. Here each call is described that way, and the
work it returns leaves a mark where the program waits for it.
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
"""Makes of a collective's result a tensor that is waited for where it is first used."""

BARRIER = "c10d::barrier"
OPEN = "{} collectives are not waited for within the step: its end waits for them"

API = "torch.distributed.distributed_c10d"

talking: ContextVar[Communication | None] = ContextVar("talking", default=None)
"""The communication of the capture that is under way."""


@dataclass(slots=True)
class Communication:
    """The process groups of a capture, and the collectives that nobody has waited for yet.

    Attributes:
        notes: sentences about the capture.
        started: whether the program started a process group.
        groups: the ranks of each group that a collective was for, by the group's name.
        asked: the collective that is being called.
        recording: whether calls are being recorded.
        pending: by the address of its memory, the collective that will fill a tensor.
        reduced: the same for those that ``DistributedDataParallel`` waits for at backward's end.
        open: the numbers of those that nobody has waited for.
        works: what calls returned, kept: torch does not keep the parts that Python sees.
        reducers: those of ``DistributedDataParallel``.
    """

    notes: dict[str, None]
    started: bool = False
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    asked: IssuedCollective | None = None
    recording: bool = False
    pending: dict[int, str] = field(default_factory=dict)
    reduced: dict[int, str] = field(default_factory=dict)
    open: dict[str, None] = field(default_factory=dict)
    works: list[Torch] = field(default_factory=list)
    reducers: dict[int, Torch] = field(default_factory=dict)
    _finishing: bool = False
    _numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Describe the collectives that are called while it lasts."""
        for waited in (self.pending, self.reduced, self.open, self.works):
            waited.clear()
        self.recording = True
        try:
            yield
        finally:
            self.recording, self.asked = False, None
        if self.open:
            self.notes[OPEN.format(len(self.open))] = None

    def issue(self, func: Torch, given: Sequence[Torch]) -> IssuedCollective | None:
        """Describe a call if it is a collective; ``given`` are its arguments in schema order."""
        named = dict(zip((a.name for a in func._schema.arguments), given, strict=True))
        self.asked = None
        if func._schema.name == WAIT or not {"process_group", "group_name"} & named.keys():
            return None
        group = _group(named)
        blocks = func._schema.name == BARRIER
        beside = bool(named.get("async_op", True)) and not blocks and on_device(given, "meta")
        number, way = f"c{next(self._numbers)}", _way(func._schema.name, named)
        self.asked = IssuedCollective(number, self.name(group), beside, blocks, way)
        if beside and self.recording:
            self.open[self.asked.number] = None
        return self.asked

    def waits(self, func: Torch, tensors: Sequence[Torch]) -> tuple[str, ...]:
        """Return the collectives that a call on ``tensors`` must wait for, which nobody did yet."""
        if func._schema.name == WAIT:
            return self._taken(self.pending, tensors)
        return self._taken(self.reduced, tensors) if self._finishing else ()

    def fills(self, issued: IssuedCollective, tensors: Sequence[Torch]) -> None:
        """Note that tensors hold a functional collective's result once it is waited for."""
        self.pending.update((_address(tensor), issued.number) for tensor in tensors)

    def name(self, group: Torch) -> str:
        """Return a group's name in the model: ``world``, a mesh's axis, or ``group3``."""
        from torch import distributed as dist

        ranks = tuple(dist.get_process_group_ranks(group))
        words = {"default_pg": "world", "undefined": "", "": ""}
        desc = words.get(group.group_desc, group.group_desc).removeprefix("mesh_")
        plain = "".join(c if c.isalnum() or c == "_" else "_" for c in desc)
        name = plain or f"group{group.group_name}"
        if self.groups.setdefault(name, ranks) != ranks:
            name = f"{name}_{group.group_name}"
            self.groups[name] = ranks
        return name

    def work(self, tensors: Sequence[Torch]) -> Torch:
        """Return what a collective's call gives its caller, to wait for it."""
        work = _work_class()(self, self.asked if self.recording else None, tensors)
        self.works.append(work)
        return work

    def at_end(self, issued: IssuedCollective, tensors: Sequence[Torch]) -> None:
        """Let backward's end wait for a collective, as ``DistributedDataParallel`` does.

        It does so bucket by bucket, before what uses the bucket, in a callback of its own, which
        torch runs between these two.
        """
        from torch.autograd import Variable

        if not self.reduced:
            Variable._execution_engine.queue_callback(self._begin_finishing)
        self.reduced.update((_address(tensor), issued.number) for tensor in tensors)

    def _begin_finishing(self) -> None:
        from torch.autograd import Variable

        self._finishing = True
        Variable._execution_engine.queue_callback(self._end_finishing)

    def _end_finishing(self) -> None:
        for number in self.reduced.values():
            self.wait(number)
        self.reduced.clear()
        self._finishing = False

    def wait(self, number: str) -> None:
        """Let the stream that is current wait for a collective."""
        self.open.pop(number, None)
        mark("wait", number)

    def _taken(self, waited: dict[int, str], tensors: Sequence[Torch]) -> tuple[str, ...]:
        found = [waited.pop(_address(tensor), "") for tensor in tensors]
        for number in found:
            self.open.pop(number, None)
        return tuple(filter(None, found))


def unwaited(tensor: Torch) -> Torch:
    """Return a collective's result as devices give it; meta would give a tensor of its own."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(tensor)


def word_of(value: Torch) -> str | None:
    """Return the IR's word for a group or a reduction that a collective's call is given."""
    comm = talking.get()
    kind = value._type().name() if hasattr(value, "_type") else ""
    if kind == "ProcessGroup" and comm is not None and comm.asked is not None:
        return comm.asked.group
    return _reduction() if kind == "ReduceOp" else None


def _reduction() -> str:
    """Return the reduction that the call of torch's API names; torch's own calls take sums."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == API and "op" in frame.f_locals:
            return str(frame.f_locals["op"]).rpartition(".")[2].lower()
        frame = frame.f_back
    return "sum"


def _way(name: str, named: Mapping[str, Torch]) -> str:
    """Return where a call sends to, or receives from, as the name of its stream says it."""
    way, rank = PEERS.get(name.replace("::", "."), ("", ""))
    return f"_{way}_{named[rank]}" if way else ""


def _group(named: Mapping[str, Torch]) -> Torch:
    from torch import distributed as dist
    from torch.distributed import distributed_c10d

    if "process_group" in named:
        return dist.ProcessGroup.unbox(named["process_group"])
    return distributed_c10d._resolve_process_group(named["group_name"])


def _address(tensor: Torch) -> int:
    return int(tensor.untyped_storage()._cdata)


def _work_class() -> Torch:
    """Return the class of what collectives give their callers, a part of torch's hierarchy."""
    import torch
    from torch._C._distributed_c10d import Work

    class Waited(Work):
        """Leaves a mark where it is waited for."""

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
            done = torch.futures.Future()
            done.set_result(self.tensors)
            in_backward = torch._C._current_graph_task_id() >= 0
            if self.issued is not None and self.issued.on_group_stream and in_backward:
                self.comm.at_end(self.issued, self.tensors)
            return done

    return Waited
