"""What DTensor keeps of device meshes beyond the process that made them.

Meshes of equal ranks count as equal, though their process groups are those of one rank: what one
captured rank left in torch's caches would name its groups in the next.
"""

from __future__ import annotations

import sys
from importlib import import_module

from irgraph.capture.common.torch_object import Torch

TENSOR = "torch.distributed.tensor"


def forget_meshes() -> None:
    """Empty torch's caches of how DTensors are sharded and redistributed, if they are in use."""
    if TENSOR not in sys.modules:
        return
    _call(f"{TENSOR}.debug", "_clear_sharding_prop_cache")
    _call(f"{TENSOR}._redistribute", "clear_redistribute_planner_cache")
    _call(f"{TENSOR}._redistribute", "_gen_transform_infos", "cache_clear")


def _call(module: str, *names: str) -> None:
    """Call what a module has under a name, in whichever releases it has it."""
    found: Torch = import_module(module)
    for name in names:
        found = getattr(found, name, None)
    if found is not None:
        found()
