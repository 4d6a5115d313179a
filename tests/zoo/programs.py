"""All programs of the zoo, and the function that ``irgraph capture`` is given."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import tests.zoo.stubs  # noqa: F401  (before torchvision, and timm, which needs it)

SOURCES = (
    "torchvision_models",
    "timm_models",
    "transformers_models",
    "user_steps",
    "whole_programs",
)

NAMES: Mapping[str, str] = {
    "timm": "timm_models",
    "hf": "transformers_models",
    "user": "user_steps",
    "program": "whole_programs",
}
"""From what a name begins with to the module that has it; torchvision's begin with themselves."""


def programs(source: str) -> Mapping[str, Any]:
    """Return the programs of one library by name."""
    found: Mapping[str, Any] = importlib.import_module(f"tests.zoo.{source}").PROGRAMS
    return found


def train(batch: int, device: str, name: str, fixed: bool = False) -> Callable[[], object]:
    """Return the training step of a program; ``fixed`` without dropout."""
    source = NAMES.get(name.partition("/")[0], "torchvision_models")
    step: Callable[[], object] = programs(source)[name].step(batch, device, fixed)
    return step
