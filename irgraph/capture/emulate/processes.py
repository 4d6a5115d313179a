"""One process that stands for one of many: a process group of torch's that does not communicate.

``DistributedDataParallel`` reduces its gradients in it bucket by bucket, on meta tensors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

from irgraph.capture.common.torch_object import Torch

STARTED = (
    "a process group that does not communicate stands for the program's (rank {} of {}): "
    "collectives are recorded, their results are this process's own"
)
BUCKETS = (
    "DistributedDataParallel: buckets are those of the first step; torch orders them once more by "
    "when gradients are ready"
)


@contextlib.contextmanager
def processes_on_meta(notes: dict[str, None]) -> Iterator[None]:
    """Let programs start a process group, and reduce gradients in it, while it lasts."""
    import torch.distributed as dist

    if not dist.is_available():
        yield
        return
    from torch.distributed import distributed_c10d
    from torch.nn.parallel import distributed

    begin = dist.init_process_group

    def start(backend: str | None = None, *_: Torch, **options: Torch) -> None:
        _start(begin, options, notes)

    def hold(*_: Torch, **__: Torch) -> None:
        notes[BUCKETS] = None

    library = _reducing()
    patches = (
        (dist, "init_process_group", start),
        (distributed_c10d, "init_process_group", start),
        (dist, "is_nccl_available", lambda: True),
        (dist.Reducer, "_rebuild_buckets", lambda _: False),
        (distributed, "_verify_param_shape_across_processes", hold),
        (distributed, "_sync_module_states", lambda *_, **__: None),
        (distributed, "_to_kwargs", _moved),
    )
    before = dist.is_initialized()
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.callback(library._destroy)
        yield
        if dist.is_initialized() and not before:
            dist.destroy_process_group()


def _start(begin: Torch, options: dict[str, Torch], notes: dict[str, None]) -> None:
    """Start a group that does not communicate, of as many processes as the program says."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    count, rank = options.get("world_size", -1), options.get("rank", -1)
    count = int(os.environ.get("WORLD_SIZE", 1)) if count < 1 else count
    rank = int(os.environ.get("RANK", 0)) if rank < 0 else rank
    begin("fake", rank=rank, world_size=count, store=FakeStore())
    notes[STARTED.format(rank, count)] = None


def _reducing() -> Torch:
    """Return the library in which an all-reduce of meta tensors ends with a result."""
    import torch
    from torch._C import _distributed_c10d
    from torch.library import Library

    def allreduce(tensors: Torch, *_: Torch, **__: Torch) -> Torch:
        done = torch.futures.Future()
        done.set_result(tensors)
        work: Torch = _distributed_c10d
        return tensors, work._create_work_from_future(done).boxed()

    library = Library("c10d", "IMPL")
    library.impl("allreduce_", allreduce, "Meta")
    return library


def _moved(inputs: Torch, kwargs: Torch, *_: Torch) -> Torch:
    """Return the arguments of a model on the device, as the copies of one process."""
    import torch
    from torch.utils._pytree import tree_map_only

    moved = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (inputs, kwargs))
    return [moved[0]], [moved[1]]
