"""The annotation of what is torch's, which is imported only where it is used."""

from __future__ import annotations

from typing import Any, TypeAlias

Torch: TypeAlias = Any
"""An object of torch's: a tensor, a module, an operator; or what a call takes and gives."""
