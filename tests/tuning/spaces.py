"""A small step with a dimension, and spaces on it."""

from __future__ import annotations

from typing import Any

from irgraph.text import parse
from irgraph.tuning.build import search_space
from irgraph.tuning.space import SearchSpace

GRAPH = parse("""model "m" { format = 1  dims = {B = 256} }

device @gpu0 "v100"
input %x : f32[B, 1024] in $x
param %w : f32[1024, 512] in $w
param %c : f32[512] in $c

%y = aten.addmm(%c, %x, %w) : f32[B, 512] in $y
%z = aten.relu(%y) : f32[B, 512] in $z
%s = aten.sum(%z) : f32[] in $s
return %s
""")

WIDEN = """pass widen(factor: int = 1, more: int = 0)
  "The batch is another one."
{
  resize B = factor * 512 + more
}
"""
"""A pass with two parameters that vary freely."""


def small(**changes: Any) -> SearchSpace:
    """Return a space of 3 x 4 x 6 points: fusion, precision on A100 alone, batch."""
    given: dict[str, Any] = {
        "passes": ["cast-gemms", "fuse-epilogue"],
        "values": {"cast-gemms": {"narrow": ["bf16", "f16"]}},
        "dims": {"B": range(256, 1537, 256)},
        "devices": ["v100", "a100"],
        "when": {"cast-gemms": {"device": ["a100"]}},
    }
    return search_space(GRAPH, **{**given, **changes})
