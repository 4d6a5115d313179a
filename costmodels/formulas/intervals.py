"""Uncertainty of formulas: half a 90 % interval, as a share of the time.

``SMALL_SPREAD`` microseconds are added. Two are measured in traces; the others are judgements,
wider for assumptions (docs/costs.md).
"""

from __future__ import annotations

EXACT = 0.0
"""A start only: ``SMALL_SPREAD`` is its interval."""

CLOSE = 0.15
"""Streams through memory: 90 % of the traced ReLUs of V100."""

NEAR = 0.2
"""One traced kernel, or a stream that computes an offset for each element."""

FAIR = 0.25
"""Products and reductions: 90 % of the traced linear layers of V100."""

FEW = 0.3
"""Few traced shapes."""

UNTRACED = 0.4
"""Bytes that the op must read and write, with few traces."""

BORROWED = 0.5
"""Rates of other kernels or of other cards."""

ROUGH = 0.6
"""Several steps whose number is uncertain: it depends on values or on the library's choice."""

UNKNOWN = 1.0
"""Bytes alone, with an unknown use."""
