"""Profilers of the program, which do nothing: the observer of a capture takes their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

from irgraph.capture.common.torch_object import Torch

PROFILED = "the program profiles itself: its profilers recorded nothing"

WITHOUT_RESULT = (
    "start", "stop", "prepare_trace", "start_trace", "stop_trace", "add_metadata",
    "add_metadata_json", "preset_metadata_json", "toggle_collection_dynamic",
    "export_chrome_trace", "export_stacks", "export_memory_timeline",
)  # fmt: skip
"""Methods of profilers that are replaced by ones that do nothing."""


@contextlib.contextmanager
def inert_profilers(notes: dict[str, None]) -> Iterator[None]:
    """Replace the methods of torch's profilers within the context; their use adds a note."""
    import torch
    from torch.autograd import profiler as old_profiler
    from torch.autograd.profiler_util import EventList

    def ignore(*_: Torch, **__: Torch) -> None:
        notes[PROFILED] = None

    def enter(profiler: Torch) -> Torch:
        notes[PROFILED] = None
        return profiler

    def step(profiler: Torch) -> None:
        profiler.step_num += 1

    def no_events(*_: Torch, **__: Torch) -> Torch:
        return EventList([])

    contexts = {"__enter__": enter, "__exit__": ignore}
    results = {"key_averages": no_events, "events": no_events}
    methods: dict[str, Callable[..., Torch]] = dict.fromkeys(WITHOUT_RESULT, ignore)
    replacements = (
        (torch.profiler.profile, methods | contexts | results | {"step": step}),
        (torch.profiler._KinetoProfile, methods | results),
        (old_profiler.profile, contexts | results | {"export_chrome_trace": ignore}),
        (old_profiler.emit_nvtx, contexts),
    )
    with contextlib.ExitStack() as stack:
        for kind, by_name in replacements:
            for name, method in by_name.items():
                if hasattr(kind, name):
                    stack.enter_context(mock.patch.object(kind, name, method))
        yield
