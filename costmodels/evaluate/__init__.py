"""Evaluations: predictions compared with published measurements, with signed errors."""

from __future__ import annotations

from collections.abc import Callable

from costmodels.evaluate.comparison import Comparison, Evaluation
from costmodels.evaluate.coverage.evaluation import evaluate_intervals
from costmodels.evaluate.cpu.evaluation import evaluate_cpu
from costmodels.evaluate.dlrm_v100 import evaluate_dlrm_v100
from costmodels.evaluate.e2e import evaluate_e2e
from costmodels.evaluate.exchange.evaluation import evaluate_collectives
from costmodels.evaluate.hosts.evaluation import evaluate_hosts
from costmodels.evaluate.kernels import evaluate_kernels
from costmodels.evaluate.llm.evaluation import evaluate_llm
from costmodels.evaluate.models import evaluate_models
from costmodels.evaluate.modern import evaluate_modern
from costmodels.evaluate.tiers.evaluation import evaluate_tiers
from costmodels.evaluate.timed.evaluation import evaluate_timed
from costmodels.evaluate.timed.swept import evaluate_swept
from costmodels.evaluate.traced import evaluate_traced
from costmodels.evaluate.whole.gains import evaluate_gains
from costmodels.evaluate.whole.steps import evaluate_steps

EVALUATIONS: dict[str, Callable[[], Evaluation]] = {
    "collectives": evaluate_collectives,
    "cpu": evaluate_cpu,
    "dlrm-v100": evaluate_dlrm_v100,
    "e2e": evaluate_e2e,
    "gains": evaluate_gains,
    "hosts": evaluate_hosts,
    "intervals": evaluate_intervals,
    "kernels": evaluate_kernels,
    "llm": evaluate_llm,
    "models": evaluate_models,
    "modern": evaluate_modern,
    "steps": evaluate_steps,
    "swept": evaluate_swept,
    "tiers": evaluate_tiers,
    "timed": evaluate_timed,
    "traced": evaluate_traced,
}
"""Evaluations by their name in the command line."""

__all__ = [
    "EVALUATIONS",
    "Comparison",
    "Evaluation",
    "evaluate_collectives",
    "evaluate_cpu",
    "evaluate_dlrm_v100",
    "evaluate_e2e",
    "evaluate_gains",
    "evaluate_hosts",
    "evaluate_intervals",
    "evaluate_kernels",
    "evaluate_llm",
    "evaluate_models",
    "evaluate_modern",
    "evaluate_steps",
    "evaluate_swept",
    "evaluate_tiers",
    "evaluate_timed",
    "evaluate_traced",
]
