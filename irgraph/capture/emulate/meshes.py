"""Isolation of DTensor's internal computations: the sharding and the shapes of results.

Torch treats meshes of equal ranks as equal, although their process groups belong to one rank:
entries of torch's caches from one captured rank would name its groups in the capture of the next.
DTensor infers the shape of a result by a call on empty tensors of the full shape, at the first use
of an op, which may be in any step: such calls are not part of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module

from irgraph.capture.common.torch_object import Torch

TENSOR = "torch.distributed.tensor"
SHAPE_INFERENCE = "_propagate_tensor_meta_non_cached"
"""Torch's name of the method that infers the shape of a result."""


def forget_meshes() -> None:
    """Clear torch's caches of the sharding and redistribution of DTensors, if they are in use."""
    if TENSOR not in sys.modules:
        return
    _call_if_present(f"{TENSOR}.debug", "_clear_sharding_prop_cache")
    _call_if_present(f"{TENSOR}._redistribute", "clear_redistribute_planner_cache")
    _call_if_present(f"{TENSOR}._redistribute", "_gen_transform_infos", "cache_clear")


def _call_if_present(module: str, *names: str) -> None:
    """Call a module's function, or a nested attribute, if this release of torch has it."""
    function: Torch = import_module(module)
    for name in names:
        function = getattr(function, name, None)
    if function is not None:
        function()


def unrecorded_shape_inference() -> Iterator[tuple[Torch, str, Torch]]:
    """Yield the patch that hides DTensor's shape inference from the recording of a step."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    propagator = import_module(f"{TENSOR}._sharding_prop").ShardingPropagator
    infer = getattr(propagator, SHAPE_INFERENCE, None)
    if infer is None:
        return

    switch = torch._C._autograd._enable_record_function

    def infer_unrecorded(self: Torch, schema: Torch, *arguments: Torch) -> Torch:
        first = getattr(schema.args_schema[0], "tensor_meta", None)
        if schema.op._schema.name.endswith("_") and first is not None:
            return first  # the fake kernels of random numbers require a real card
        switch(False)
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return infer(self, schema, *arguments)
        finally:
            switch(True)

    yield propagator, SHAPE_INFERENCE, infer_unrecorded
