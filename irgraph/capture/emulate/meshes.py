"""What DTensor works out for itself, beside the step: how results are sharded, and of which form.

Meshes of equal ranks count as equal, though their process groups are those of one rank: what one
captured rank left in torch's caches would name its groups in the next. The form of a result is
found by a call on tensors of the whole form that hold nothing, the first time that an op is met,
which may be in any step: such calls are none of the program's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module

from irgraph.capture.common.torch_object import Torch

TENSOR = "torch.distributed.tensor"
SHAPE_INFERENCE = "_propagate_tensor_meta_non_cached"
"""What finds the form of a result, by torch's name."""


def forget_meshes() -> None:
    """Empty torch's caches of how DTensors are sharded and redistributed, if they are in use."""
    if TENSOR not in sys.modules:
        return
    _call_if_present(f"{TENSOR}.debug", "_clear_sharding_prop_cache")
    _call_if_present(f"{TENSOR}._redistribute", "clear_redistribute_planner_cache")
    _call_if_present(f"{TENSOR}._redistribute", "_gen_transform_infos", "cache_clear")


def _call_if_present(module: str, *names: str) -> None:
    """Call what a module has under a name, in whichever releases it has it."""
    function: Torch = import_module(module)
    for name in names:
        function = getattr(function, name, None)
    if function is not None:
        function()


def unrecorded_shape_inference() -> Iterator[tuple[Torch, str, Torch]]:
    """Yield what lets DTensor find the forms of results unseen by what records a step."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    propagator = import_module(f"{TENSOR}._sharding_prop").ShardingPropagator
    infer = getattr(propagator, SHAPE_INFERENCE, None)
    if infer is None:
        return

    switch = torch._C._autograd._enable_record_function

    def infer_unrecorded(self: Torch, *arguments: Torch) -> Torch:
        switch(False)
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return infer(self, *arguments)
        finally:
            switch(True)

    yield propagator, SHAPE_INFERENCE, infer_unrecorded
