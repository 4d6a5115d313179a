"""Kernel families, one file each: which ops launch its kernels, with which sizes, for how long.

A family's file defines ``RULES``, from dotted op names to functions of the op and the machine
that return the op's kernels in launch order. Adding a family is adding a file to this folder.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from costmodels.machine import Rule


@cache
def rules() -> Mapping[str, Rule]:
    """Return every family's rules by op name; two families must not claim the same op."""
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        claimed: Mapping[str, Rule] = import_module(module.name).RULES
        twice = found.keys() & claimed.keys()
        if twice:
            raise ValueError(f"{module.name} claims ops of another family: {sorted(twice)}")
        found.update(claimed)
    return found
