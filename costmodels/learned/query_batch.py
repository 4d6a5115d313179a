"""Questions to trained models that are collected first and answered at once.

What a network takes is mostly the same for one kernel as for a hundred. While questions are
collected, each new one raises ``WaitingError``: who prices leaves that op and asks again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from costmodels.formulas.machine import Predictor
from costmodels.learnable.family import Query
from costmodels.learnable.hardware import Hardware
from costmodels.learned.infer import Estimates, estimate
from costmodels.learned.weights import Weights

KernelEstimate: TypeAlias = tuple[float, float, bool]
"""Of one kernel: time, width and whether it is outside, as in ``Estimates``."""

QueryKind: TypeAlias = tuple[str, tuple[str, ...]]
"""Questions that one call of ``estimate`` answers: their family, and the names of their sizes."""

QuerySizes: TypeAlias = tuple[float, ...]


class PendingEstimateError(Exception):
    """A question is collected, and has no answer yet."""


class QueryBatch:
    """Questions about single kernels on one device, and their answers."""

    def __init__(self) -> None:
        self._collecting = False
        self._kinds: dict[QueryKind, tuple[Weights, Hardware, dict[QuerySizes, None]]] = {}
        self._known: dict[tuple[QueryKind, QuerySizes], KernelEstimate] = {}

    def collect(self) -> None:
        """Let new questions wait until ``answer``."""
        self._collecting = True

    def answer(self) -> None:
        """Answer all questions that wait; further ones are answered one by one."""
        self._collecting = False
        for kind, (weights, device, asked) in self._kinds.items():
            found = _estimates(weights, device, kind, list(asked))
            self._known.update(((kind, sizes), each) for sizes, each in found.items())
        self._kinds.clear()

    def ask(self, weights: Weights, device: Hardware, query: Query) -> KernelEstimate:
        """Return the estimate for a query without sizes of many points, or let it wait."""
        kind = weights.family.name, tuple(query.sizes)
        sizes = (*query.sizes.values(), weights.family.ops.index(query.op))
        found = self._known.get((kind, sizes))
        if found is not None:
            return found
        if self._collecting:
            self._kinds.setdefault(kind, (weights, device, {}))[2][sizes] = None
            raise PendingEstimateError
        return _estimates(weights, device, kind, [sizes])[sizes]


def _estimates(
    weights: Weights, device: Hardware, kind: QueryKind, asked: list[QuerySizes]
) -> dict[QuerySizes, KernelEstimate]:
    names = (*kind[1], "op")
    columns = dict(zip(names, np.array(asked, np.float32).T.copy(), strict=True))
    found: Estimates = estimate(weights, columns, device)
    rows = zip(found.time.tolist(), found.width.tolist(), found.outside.tolist(), strict=True)
    return dict(zip(asked, rows, strict=True))


class BatchedModels(dict[str, Predictor]):
    """Trained models by family, whose questions can be collected.

    Attributes:
        together: where they are.
    """

    def __init__(self, models: Mapping[str, Predictor], together: QueryBatch) -> None:
        super().__init__(models)
        self.together = together
