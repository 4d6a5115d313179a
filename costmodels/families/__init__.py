"""Kernel families, one file each: which ops launch its kernels, with which sizes, for how long.

A family's file defines

- ``RULES``, from dotted op names to functions of the op and the machine that return the op's
  kernels in launch order;
- ``SOURCE``, where the times come from;
- ``SWEEPS``, if its kernels can be measured: microbenchmarks by name;
- ``LEARNED``, if a model of them can be trained.

Adding a family is adding a file to this folder, or installing a package whose entry point in the
group ``irgraph.families`` names such a module.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.machine import Rule
from costmodels.learnable.family import LearnedFamily
from irgraph.plugins import Plugin, plugins

_T = TypeVar("_T")

GROUP = "irgraph.families"
"""Entry points of this group name modules that are families."""


@cache
def rules() -> Mapping[str, Rule]:
    """Return every family's rules by op name.

    Raises ``IrgraphError`` where an installed family cannot be imported, or claims an op of
    another one; so do ``sweeps`` and ``learned_families``.
    """
    return _collected(lambda module: module.RULES, "rule for")


@cache
def sweeps() -> dict[str, Sweep]:
    """Return the microbenchmarks of all families, by the name that ``irgraph measure`` takes."""
    return _collected(lambda module: getattr(module, "SWEEPS", {}), "sweep")


def shipped_sweeps() -> dict[str, Sweep]:
    """Return the microbenchmarks of the families that ship, without those of installed packages."""
    own = [module for module, plugin in _modules() if plugin is None]
    found: dict[str, Sweep] = {}
    for module in own:
        found.update(getattr(module, "SWEEPS", {}))
    return found


@cache
def learned_families() -> dict[str, LearnedFamily]:
    """Return the families that can be trained, by the name that ``irgraph train`` takes."""

    def declared(module: ModuleType) -> dict[str, LearnedFamily]:
        found: LearnedFamily | None = getattr(module, "LEARNED", None)
        return {} if found is None else {found.name: found}

    return _collected(declared, "learned family")


@cache
def _modules() -> tuple[tuple[ModuleType, Plugin | None], ...]:
    """Return the module of every family, and for installed ones what installed it."""
    shipped = pkgutil.iter_modules(__path__, f"{__name__}.")
    installed = plugins(GROUP)
    return (
        *((import_module(module.name), None) for module in shipped),
        *((plugin.load(), plugin) for plugin in installed),
    )


def _collected(declared: Callable[[ModuleType], Mapping[str, _T]], what: str) -> dict[str, _T]:
    """Join what modules declare by name; no name may be declared twice."""
    found: dict[str, _T] = {}
    for module, plugin in _modules():
        try:
            claimed = declared(module)
        except AttributeError as error:
            raise plugin.error(str(error)) if plugin else error from None
        if plugin is not None:
            plugin.refuse_duplicates(claimed, found, what)
        elif found.keys() & claimed.keys():
            twice = sorted(found.keys() & claimed.keys())
            raise ValueError(f"{module.__name__} has another {what} {', '.join(twice)}")
        found.update(claimed)
    return found
