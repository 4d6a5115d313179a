"""Evaluations: predictions beside published measurements, with signed errors."""

from __future__ import annotations

from collections.abc import Callable

from irgraph.evaluate.comparison import Comparison
from irgraph.evaluate.dlrm_v100 import evaluate_dlrm_v100

EVALUATIONS: dict[str, Callable[[], Comparison]] = {"dlrm-v100": evaluate_dlrm_v100}
"""What can be evaluated, by the name the command takes."""

__all__ = ["EVALUATIONS", "Comparison", "evaluate_dlrm_v100"]
