"""Modules of higher packages that lower packages call, registered when irgraph is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CUSTOM_OPS = "custom ops"
"""Module that declares the ops that torch lacks."""

_MODULES: dict[str, Callable[[], Any]] = {}


def register(purpose: str, load: Callable[[], Any]) -> None:
    """Register the module for a purpose; ``load`` imports it at its first use."""
    _MODULES[purpose] = load


def module_for(purpose: str) -> Any:  # noqa: ANN401  (a module)
    """Return the module that is registered for a purpose."""
    return _MODULES[purpose]()
