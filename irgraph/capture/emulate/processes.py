"""Emulation of one process of many by a process group of torch that does not communicate.

Collectives of meta tensors run in it, and ``DistributedDataParallel`` reduces its gradients bucket
by bucket. The program, the environment or the caller specifies the rank and the number of ranks.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from unittest import mock

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.communication import Communication, current_communication
from irgraph.capture.emulate.environment import Process, local_rank
from irgraph.capture.emulate.meshes import forget_meshes, unrecorded_shape_inference
from irgraph.capture.emulate.pipelines import call_in_sequence, stage_patches
from irgraph.diagnostics import fail

STARTED = (
    "the program's process group is emulated without communication (rank {} of {}): "
    "collectives are recorded, their results are this process's own"
)
NO_GROUP = "ranks are given, but the program starts no process group"
START_ONE = "call torch.distributed.init_process_group or init_device_mesh, as under torchrun"
FSDP = "torch.distributed.fsdp._fully_shard._fsdp"
OBJECT_RECEIVERS = "recv_object_list", "scatter_object_list"
"""Functions by which programs receive objects, whose values are unknown here."""

UNKNOWN_OBJECTS = "objects that other ranks send are unknown"
READ_IT = "let the program read RANK and WORLD_SIZE, as torchrun sets them"


@contextlib.contextmanager
def processes_on_meta(notes: dict[str, None], process: Process | None = None) -> Iterator[None]:
    """Emulate process groups and their communication within the context."""
    import torch.distributed as dist

    if not dist.is_available():
        yield
        return
    from torch.distributed import device_mesh, distributed_c10d
    from torch.nn.parallel import distributed

    import_module("torch._subclasses.fake_tensor").FakeTensorMode.cache_clear()  # names a card
    comm, stack = Communication(notes), contextlib.ExitStack()

    def patch_stages() -> None:
        for owner, name, value in stage_patches(comm):
            stack.enter_context(mock.patch.object(owner, name, value))

    start = _group_starter(dist.init_process_group, comm, notes, process, patch_stages)
    patches = (
        (dist, "init_process_group", start),
        (distributed_c10d, "init_process_group", start),
        (device_mesh, "init_process_group", start),
        (
            distributed_c10d,
            "_new_process_group_helper",
            _helper_without_communication(distributed_c10d),
        ),
        (dist, "is_nccl_available", lambda: True),
        (import_module("torch.multiprocessing"), "spawn", _run_own_rank),
        (dist.Reducer, "_rebuild_buckets", _deferred_rebuild(comm, dist.Reducer._rebuild_buckets)),
        (distributed, "_verify_param_shape_across_processes", lambda *_, **__: None),
        (distributed, "_sync_module_states", lambda *_, **__: None),
        (distributed, "_to_kwargs", _move_to_meta),
        *(
            (owner, name, _refuse_objects)
            for owner in (dist, distributed_c10d)
            for name in OBJECT_RECEIVERS
        ),
        *((owner, "batch_isend_irecv", call_in_sequence) for owner in (dist, distributed_c10d)),
        *_sharding_patches(),
        *unrecorded_shape_inference(),
    )
    token = current_communication.set(comm)
    forget_meshes()
    with stack:
        stack.callback(current_communication.reset, token)
        stack.callback(forget_meshes)
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        for library in _collectives(comm):
            stack.callback(library._destroy)
        if not dist.is_initialized():
            stack.callback(_destroy_group)
        yield
        if process is not None and not comm.started:
            raise fail(NO_GROUP, hint=START_ONE)


def _run_own_rank(
    function: Callable[..., object], args: Sequence[object] = (), nprocs: int = 1, **_: object
) -> None:
    """Run one of the processes that a program starts itself: the one of the captured rank."""
    rank = local_rank()
    if rank >= nprocs:
        raise fail(f"the program starts {nprocs} processes, and rank {rank} is none of them")
    function(rank, *args)


def _refuse_objects(*_: Torch, **__: Torch) -> None:
    raise fail(UNKNOWN_OBJECTS, hint="let the program compute it on each rank")


def _sharding_patches() -> Iterator[tuple[Torch, str, Torch]]:
    """Yield patches for ``fully_shard`` to accept meta parameters and use a card's streams.

    The older ``FullyShardedDataParallel`` compares its ``device_id`` with parameters' devices.
    """
    import torch

    def meta_for_id(device: Torch, *_: Torch) -> Torch:
        return None if device is None else torch.device("meta")

    init = import_module("torch.distributed.fsdp._init_utils")
    yield init, "_get_device_from_device_id", meta_for_id
    handles = import_module("torch.distributed.fsdp._common_utils")._FSDPDeviceHandle
    yield handles, "from_device", lambda device: torch.cuda if device.type != "cpu" else torch.cpu
    group = import_module(f"{FSDP}_param_group")
    handle = group._get_device_handle

    def card(kind: str = "cuda") -> Torch:
        return handle("cuda" if kind == "meta" else kind)

    yield group.FSDPParamGroup, "_validate_no_meta_params", lambda _: None
    tracker = import_module("torch.distributed.tensor._random").OffsetBasedRNGTracker
    # it moves the state of the random numbers to the card
    yield tracker, "_get_device_state", lambda _: torch.get_rng_state()
    for part in ("param_group", "collectives", "init", "state"):
        yield import_module(f"{FSDP}_{part}"), "_get_device_handle", card


def _destroy_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def rebuild_buckets() -> None:
    """Rebuild the buckets of ``DistributedDataParallel`` in the order of ready gradients.

    ``DistributedDataParallel`` does so after its first step, before the next one starts, in an
    order on which all processes agree.
    """
    comm = current_communication.get()
    for reducer, rebuild in comm.reducers.items() if comm is not None else ():
        rebuild(reducer)


def _deferred_rebuild(comm: Communication, rebuild: Torch) -> Torch:
    """Return a function that defers its first call, without gradients yet, to ``rebuild_buckets``.

    With several warm-up steps, a second call comes before that, and torch rebuilds the buckets.
    """

    def defer_first(reducer: Torch) -> bool:
        if reducer in comm.reducers:
            return bool(rebuild(reducer))
        comm.reducers[reducer] = rebuild
        return False

    return defer_first


def _group_starter(
    begin: Torch,
    comm: Communication,
    notes: dict[str, None],
    process: Process | None,
    on_start: Callable[[], None],
) -> Torch:
    """Return a function that starts a group without communication, of the specified size."""
    signature = inspect.signature(begin)

    def start(*args: Torch, **kwargs: Torch) -> None:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        arguments = signature.bind(*args, **kwargs).arguments
        if dist.is_initialized():
            dist.destroy_process_group()
        world_size = _process_number(arguments, "world_size", "WORLD_SIZE", process, 1)
        rank = _process_number(arguments, "rank", "RANK", process, 0)
        begin("fake", rank=rank, world_size=world_size, store=FakeStore())
        notes[STARTED.format(rank, world_size)] = None
        comm.started = True
        on_start()
        comm.groups.clear()

    return start


def _process_number(
    arguments: Mapping[str, Torch], name: str, variable: str, process: Process | None, default: int
) -> int:
    """Return a number that the program specifies, or else the environment.

    Raises ``IrgraphError`` if the program's number differs from the caller's.
    """
    specified, expected = int(arguments.get(name, -1)), int(os.environ.get(variable) or default)
    if specified < 0:
        return expected
    if process is not None and specified != expected:
        raise fail(
            f"the program sets {name}={specified}, but {expected} is asked for", hint=READ_IT
        )
    return specified


def _helper_without_communication(module: Torch) -> Torch:
    """Return a function that creates process groups without communication, for any backend."""
    original = module._new_process_group_helper
    signature = inspect.signature(original)

    def new_group(*args: Torch, **kwargs: Torch) -> Torch:
        bound = signature.bind(*args, **kwargs)
        bound.arguments |= {"backend": "fake", "backend_options": None, "device_id": None}
        return original(*bound.args, **bound.kwargs)

    return new_group


RETURNING_FIRST = ("allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_scatter_",
                "_reduce_scatter_base_", "scatter_", "alltoall_")  # fmt: skip
"""Collectives that return their first operand and the work to wait for."""

RETURNING_WORK = ("allreduce_coalesced_", "reduce_", "allgather_coalesced_",
               "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_", "gather_",
               "alltoall_base_", "send", "recv_", "recv_any_source_", "barrier")  # fmt: skip
"""Collectives that only return the work to wait for."""


def _collectives(comm: Communication) -> Iterable[Torch]:
    """Return the libraries with collectives of meta tensors that return works to wait for."""
    from torch.library import Library

    def return_first(first: Torch, *_: Torch, **__: Torch) -> Torch:
        return first, comm.work(first).boxed()

    def return_work(first: Torch, *_: Torch, **__: Torch) -> Torch:
        return comm.work(first).boxed()

    import_module("torch.distributed._functional_collectives")  # its kernels are replaced
    functional = Library("_c10d_functional", "IMPL")
    functional.impl("wait_tensor", lambda tensor: tensor, "Meta", allow_override=True)
    library = Library("c10d", "IMPL")
    for name in RETURNING_FIRST:
        library.impl(name, return_first, "Meta", allow_override=True)
    for name in RETURNING_WORK:
        library.impl(name, return_work, "Meta", allow_override=True)
    return library, functional


def _move_to_meta(inputs: Torch, kwargs: Torch, *_: Torch) -> Torch:
    """Return the arguments of a model on meta, as lists for a single process."""
    import torch
    from torch.utils._pytree import tree_map_only

    arguments = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (inputs, kwargs))
    return [arguments[0]], [arguments[1]]
