"""A measured step with its prediction."""

from __future__ import annotations

from msgspec import Struct

from costmodels.evaluate.errors import error
from costmodels.evaluate.llm.case import LlmCase
from costmodels.evaluate.llm.steps import StepPrediction


class CaseOutcome(Struct, frozen=True):
    """A case and its prediction."""

    case: LlmCase
    prediction: StepPrediction

    @property
    def error(self) -> float:
        """Signed relative error of the step time."""
        return error(self.prediction.time, self.case.measured)

    @property
    def measured_rate(self) -> float:
        """Measured tokens of all ranks per millisecond."""
        return self.case.tokens / self.case.measured

    @property
    def predicted_rate(self) -> float:
        """Predicted tokens of all ranks per millisecond."""
        return self.case.tokens / self.prediction.time
