"""Results of queries of the card and its memory on a machine without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.card import EmulatedCard
from irgraph.capture.emulate.environment import card_count, local_rank

DEVICE = "cuda"

CUDA, CUDNN = "12.8", 91002
"""Reported versions of CUDA and cuDNN."""

OF_CARD = {
    f"torch.cuda.{name}"
    for name in (
        "get_device_name",
        "get_device_capability",
        "get_device_properties",
        "mem_get_info",
        "is_bf16_supported",
        "get_arch_list",
    )
}
"""Functions whose results are properties of the emulated card."""

MADE_UP = {
    f"torch.cuda.{name}"
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "memory_stats",
        "max_memory_reserved",
        "mem_get_info",
        "memory_summary",
    )
}
"""Functions whose results are fictitious, although a program might depend on them."""


ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
"""Functions of ``torch.cuda`` that return 0."""

WITHOUT_RESULT = (
    "init",
    "_lazy_init",
    "set_device",
    "empty_cache",
    "ipc_collect",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "reset_peak_memory_stats",
    "set_rng_state",
    "reset_max_memory_allocated",
    "set_rng_state_all",
    "set_per_process_memory_fraction",
)
"""Functions of ``torch.cuda`` that return nothing."""


class CurrentDevice(contextlib.nullcontext):  # type: ignore[type-arg]
    """Replacement of ``torch.cuda.device``: a capture has one device."""

    def __init__(self, device: Torch = None) -> None:
        super().__init__(device)


class Runtime:
    """Replacement of the library of ``torch.cuda.cudart()``: each function succeeds."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Return a function that returns no error."""
        return lambda *_, **__: 0


def answers_of(torch: Torch, emulated: EmulatedCard) -> dict[tuple[Torch, str], Torch]:
    """Return replacements of functions that query cards and memory, by module and name."""
    values = {
        **_card_values(emulated),
        **dict.fromkeys(ZERO, 0),
        **dict.fromkeys(WITHOUT_RESULT),
    }
    answers = {(torch.cuda, name): _constant(value) for name, value in values.items()}
    state = torch.get_rng_state
    answers |= {
        (torch.cuda, "get_rng_state"): lambda device=DEVICE: state(),
        (torch.cuda, "get_rng_state_all"): lambda: [state()],
        (torch.cuda, "cudart"): _constant(Runtime()),
        (torch.backends.cudnn, "version"): _constant(CUDNN),
        (torch.cuda, "device"): CurrentDevice,
    }
    answers |= {
        (module, name): _constant(None)
        for module, names in (
            (torch.cuda.nvtx, ("range_push", "range_pop", "mark")),
            (torch.cuda.profiler, ("start", "stop")),
        )
        for name in names
    }
    accelerator_values = {
        "is_available": True,
        "device_count": card_count(),
        "current_device_index": local_rank(),
        "current_accelerator": torch.device(DEVICE),
        "set_device_index": None,
        "device_index": contextlib.nullcontext(),
    }
    answers |= {
        (torch.accelerator, name): _constant(value) for name, value in accelerator_values.items()
    }
    # torch.distributed chooses its default device mesh by this one
    return answers | {(torch._C, "_get_accelerator"): _constant(torch.device(DEVICE))}


def _card_values(emulated: EmulatedCard) -> dict[str, Torch]:
    """Return the results of the functions of ``torch.cuda`` that return something else."""
    from types import SimpleNamespace

    card = SimpleNamespace(
        name=emulated.name,
        major=emulated.capability[0],
        minor=emulated.capability[1],
        total_memory=emulated.memory,
        multi_processor_count=emulated.sms,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
    )
    return {
        "is_available": True,
        "is_initialized": True,
        "device_count": card_count(),
        "current_device": local_rank(),
        "is_bf16_supported": emulated.capability >= (8, 0),
        "get_device_name": emulated.name,
        "get_device_capability": emulated.capability,
        "get_device_properties": card,
        "mem_get_info": (emulated.memory, emulated.memory),
        "memory_stats": {},
        "is_current_stream_capturing": False,
        "get_arch_list": [emulated.target],
        "initial_seed": 0,
        "utilization": 0,
        "memory_summary": "",
    }


def _constant(value: Torch) -> Callable[..., Torch]:
    return lambda *_, **__: value
