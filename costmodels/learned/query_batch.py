"""Batches of queries to trained models.

A network takes about the same time for one kernel as for a hundred. While a batch is collected,
each new query raises ``PendingEstimateError``; the pricer skips that op and prices it after the
batch has run.
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
"""Estimate of one kernel: time, width and whether it is outside, as in ``Estimates``."""

QueryKind: TypeAlias = tuple[str, tuple[str, ...]]
"""Key of the queries of one call of ``estimate``: their family, and the names of their sizes."""

QuerySizes: TypeAlias = tuple[float, ...]
"""Sizes of one query, in the order of their names, and the index of its op."""


class PendingEstimateError(Exception):
    """Raised for a query that is in the batch and has no estimate yet."""


class QueryBatch:
    """Batch of queries for kernels on one device, with a cache of their estimates."""

    def __init__(self) -> None:
        self._collecting = False
        self._pending: dict[QueryKind, tuple[Weights, Hardware, dict[QuerySizes, None]]] = {}
        self._cache: dict[tuple[QueryKind, QuerySizes], KernelEstimate] = {}

    def start(self) -> None:
        """Start a batch: collect new queries until ``run``."""
        self._collecting = True

    def run(self) -> None:
        """Evaluate the collected queries; later ones are evaluated individually."""
        self._collecting = False
        for kind, (weights, device, queries) in self._pending.items():
            estimates = _run_queries(weights, device, kind, list(queries))
            self._cache.update(
                ((kind, sizes), kernel_estimate) for sizes, kernel_estimate in estimates.items()
            )
        self._pending.clear()

    def estimate(self, weights: Weights, device: Hardware, query: Query) -> KernelEstimate:
        """Return the estimate of a query with scalar sizes.

        Raises ``PendingEstimateError`` for a new query while a batch is collected.
        """
        kind = weights.family.name, tuple(query.sizes)
        sizes = (*query.sizes.values(), weights.family.ops.index(query.op))
        cached = self._cache.get((kind, sizes))
        if cached is not None:
            return cached
        if self._collecting:
            self._pending.setdefault(kind, (weights, device, {}))[2][sizes] = None
            raise PendingEstimateError
        return _run_queries(weights, device, kind, [sizes])[sizes]


def _run_queries(
    weights: Weights, device: Hardware, kind: QueryKind, queries: list[QuerySizes]
) -> dict[QuerySizes, KernelEstimate]:
    names = (*kind[1], "op")
    columns = dict(zip(names, np.array(queries, np.float32).T.copy(), strict=True))
    estimates: Estimates = estimate(weights, columns, device)
    rows = zip(
        estimates.time.tolist(), estimates.width.tolist(), estimates.outside.tolist(), strict=True
    )
    return dict(zip(queries, rows, strict=True))


class BatchedModels(dict[str, Predictor]):
    """Trained models by family, with batched queries.

    Attributes:
        batch: the batch of their queries.
    """

    def __init__(self, models: Mapping[str, Predictor], batch: QueryBatch) -> None:
        super().__init__(models)
        self.batch = batch
