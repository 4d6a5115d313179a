"""Kernel families, one file each: the ops that launch its kernels, with their sizes and times.

A family's file defines

- ``RULES``, from dotted op names to functions of the op and the machine that return the op's
  kernels in launch order;
- ``SOURCE``, the source of the times;
- ``SWEEPS``, if its kernels can be measured: microbenchmarks by name;
- ``LEARNED``, if a model of them can be trained.

To add a family, add a file to this folder, or install a package whose entry point in the group
``irgraph.families`` names such a module.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from costmodels.benchmarks import networks
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.machine import Rule
from costmodels.learnable.family import LearnedFamily
from irgraph.plugins import Plugin, plugins

_T = TypeVar("_T")

GROUP = "irgraph.families"
"""Group of the entry points that name modules of installed families."""


@cache
def rules() -> Mapping[str, Rule]:
    """Return every family's rules by op name.

    Raises ``IrgraphError`` if an installed family cannot be imported, or claims an op of
    another one; so do ``sweeps`` and ``learned_families``.
    """
    return _collect_by_name(lambda module: module.RULES, "rule for")


@cache
def sweeps() -> dict[str, Sweep]:
    """Return the microbenchmarks of all families, by their name in ``irgraph measure``."""
    by_family = _collect_by_name(lambda module: getattr(module, "SWEEPS", {}), "sweep")
    return by_family | networks.SWEEPS


def shipped_sweeps() -> dict[str, Sweep]:
    """Return the microbenchmarks of the shipped families, without those of installed packages."""
    shipped_modules = [module for module, plugin in _modules() if plugin is None]
    sweeps_by_name: dict[str, Sweep] = dict(networks.SWEEPS)
    for module in shipped_modules:
        sweeps_by_name.update(getattr(module, "SWEEPS", {}))
    return sweeps_by_name


@cache
def learned_families() -> dict[str, LearnedFamily]:
    """Return the families that can be trained, by their name in ``irgraph train``."""

    def declared_family(module: ModuleType) -> dict[str, LearnedFamily]:
        family: LearnedFamily | None = getattr(module, "LEARNED", None)
        return {} if family is None else {family.name: family}

    return _collect_by_name(declared_family, "learned family")


@cache
def _modules() -> tuple[tuple[ModuleType, Plugin | None], ...]:
    """Return the module of every family, with the plugin of an installed one."""
    shipped = pkgutil.iter_modules(__path__, f"{__name__}.")
    installed = plugins(GROUP)
    return (
        *((import_module(module.name), None) for module in shipped),
        *((plugin.load(), plugin) for plugin in installed),
    )


def _collect_by_name(
    read_module: Callable[[ModuleType], Mapping[str, _T]], noun: str
) -> dict[str, _T]:
    """Merge the declarations of all modules by name; reject a name declared twice."""
    by_name: dict[str, _T] = {}
    for module, plugin in _modules():
        try:
            declared_items = read_module(module)
        except AttributeError as error:
            raise plugin.error(str(error)) if plugin else error from None
        if plugin is not None:
            plugin.refuse_duplicates(declared_items, by_name, noun)
        elif by_name.keys() & declared_items.keys():
            duplicates = sorted(by_name.keys() & declared_items.keys())
            raise ValueError(f"{module.__name__} has another {noun} {', '.join(duplicates)}")
        by_name.update(declared_items)
    return by_name
