"""Uncertainty of formulas: half a 90 % interval, as a share of the time.

``SMALL_SPREAD`` microseconds come on top. Two were taken from traces; the others are
judgements, wider with what is only assumed (docs/costs.md).
"""

from __future__ import annotations

EXACT = 0.0
"""A start and nothing else: ``SMALL_SPREAD`` is its interval."""

CLOSE = 0.15
"""Streams through memory: 90 % of the traced ReLUs of V100."""

NEAR = 0.2
"""One traced kernel, or a stream that computes an offset for each element."""

FAIR = 0.25
"""Products and reductions: 90 % of the traced linear layers of V100."""

FEW = 0.3
"""Few traced shapes."""

UNTRACED = 0.4
"""What the op must read and write; little of it was traced."""

BORROWED = 0.5
"""Rates of other kernels or of other cards."""

ROUGH = 0.6
"""Several steps, their number not known for sure: it depends on values or the library's choice."""

UNKNOWN = 1.0
"""Bytes alone: what the op does with them is not known."""
