"""Models whose types torch has verified, by the hash of their text, in the user's cache.

The check takes seconds to import torch: each model is checked once for each version of irgraph and
torch.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from grammars import private_folder
from irgraph.ir.graph import Graph
from irgraph.ops.rules.finding import Finding

FOLDER = "types"
"""Folder in the user's cache folder; a file without content for each model."""

MAX_MODELS = 1000
"""Maximum number of models that are remembered."""


def can_check_types() -> bool:
    """Return whether torch is installed."""
    return find_spec("torch") is not None


def cached_type_findings(graph: Graph, text: str) -> list[Finding]:
    """Return the findings of torch's type check, none if a model of this text had none before.

    Raises ``ImportError`` if torch is missing.
    """
    marker = _marker(text)
    if marker is not None and marker.is_file():
        return []
    from irgraph.execute.type_check import type_findings

    findings = list(type_findings(graph))
    if marker is not None and not findings:
        _remember(marker)
    return findings


def _marker(text: str) -> Path | None:
    """Return the file of a model in the cache, ``None`` if the user has no private cache."""
    folder = private_folder()
    if folder is None:
        return None
    try:
        versions = [version("irgraph"), version("torch")]
    except PackageNotFoundError:
        return None
    key = "\n".join([*versions, str(_code_time()), text])
    return folder / FOLDER / hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _code_time() -> int:
    """Return the time of the rules' newest change, for checkouts whose version stays the same."""
    package = Path(__file__).parents[2]
    names = ("ops/inference.py", "execute/type_check.py", "execute/types/views.py")
    return max((package / name).stat().st_mtime_ns for name in names)


def _remember(marker: Path) -> None:
    """Add a model to the cache, and remove the oldest of too many."""
    with suppress(OSError):
        marker.parent.mkdir(mode=0o700, exist_ok=True)
        marker.touch()
        markers = list(marker.parent.iterdir())
        if len(markers) > MAX_MODELS:
            markers.sort(key=lambda file: file.stat().st_mtime_ns)
            for file in markers[: len(markers) // 2]:
                file.unlink(missing_ok=True)
