"""Networks as safetensors files: layers, other tensors, and a head of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from costmodels.learnable.hardware import Floats
from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import unique_keys

Layers: TypeAlias = tuple[tuple[Floats, Floats], ...]
"""Weights (members, out, in) and biases (members, out) of each layer."""


def save_network(
    path: str | Path, kind: str, head: Mapping[str, Any], layers: Layers, **tensors: Floats
) -> None:
    """Write a network to a file atomically; files of equal networks are identical."""
    from safetensors.numpy import save as encode

    from irgraph.files import write_atomic

    for number, (weights, bias) in enumerate(layers):
        tensors |= {f"layer{number}.weight": weights, f"layer{number}.bias": bias}
    write_atomic(str(path), encode(tensors, {kind: json.dumps(head, sort_keys=True)}))


def _is_finite(named_tensor: tuple[str, Floats]) -> bool:
    """Return whether a tensor is finite; the extent of an op without rows is infinite."""
    name, tensor = named_tensor
    return bool((~np.isnan(tensor) if name == "extent" else np.isfinite(tensor)).all())


def load_network(path: str | Path, kind: str) -> tuple[dict[str, Any], Layers, dict[str, Floats]]:
    """Return the head (empty in a file of another kind), the layers and the other tensors.

    Raises ``IrgraphError`` if the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            head = json.loads(
                (file.metadata() or {}).get(kind, "{}"), object_pairs_hook=unique_keys
            )
            tensors: dict[str, Floats] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no iterator)
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise fail(f"cannot read weights: {error}", SourceSpan(str(path)), exit_code=2) from None
    if not all(map(_is_finite, tensors.items())):
        raise fail("cannot read weights: one is not finite", SourceSpan(str(path)), exit_code=2)
    depth = sum(name.endswith(".bias") for name in tensors)
    try:
        layers = tuple(
            (tensors.pop(f"layer{number}.weight"), tensors.pop(f"layer{number}.bias"))
            for number in range(depth)
        )
    except KeyError as error:
        message = f"cannot read weights: there is no {error.args[0]}"
        raise fail(message, SourceSpan(str(path)), exit_code=2) from None
    return head if isinstance(head, dict) else {}, layers, tensors
