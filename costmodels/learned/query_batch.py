"""Batches of queries to trained models.

A network takes about the same time for one kernel as for a hundred. While a batch is collected,
each new query raises ``PendingEstimateError``; the pricer skips that op and prices it after the
batch has run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from costmodels.formulas.machine import Predictor
from costmodels.learnable.family import Query
from costmodels.learnable.hardware import Hardware
from costmodels.learned.infer import Estimates, estimate
from costmodels.learned.weights import Weights

KernelEstimate: TypeAlias = tuple[float, float, bool]
"""Estimate of one kernel: time, width and whether it is outside, as in ``Estimates``."""

QuerySizes: TypeAlias = tuple[float, ...]
"""Numbers of one query."""

BatchFunction: TypeAlias = Callable[[list[QuerySizes]], list[Any]]
"""A function from the queries of one kind to their answers."""


class PendingEstimateError(Exception):
    """Raised for a query that is in the batch and has no estimate yet."""


class QueryBatch:
    """Batch of queries about one device, with a cache of their answers."""

    def __init__(self) -> None:
        self._collecting = False
        self._pending: dict[Hashable, tuple[BatchFunction, dict[QuerySizes, None]]] = {}
        self._cache: dict[tuple[Hashable, QuerySizes], Any] = {}

    def start(self) -> None:
        """Start a batch: collect new queries until ``run``."""
        self._collecting = True

    def run(self) -> None:
        """Evaluate the collected queries; later ones are evaluated individually."""
        self._collecting = False
        for kind, (evaluate, queries) in self._pending.items():
            answers = evaluate(list(queries))
            self._cache.update(
                ((kind, sizes), answer) for sizes, answer in zip(queries, answers, strict=True)
            )
        self._pending.clear()

    def answer(self, kind: Hashable, evaluate: BatchFunction, sizes: QuerySizes) -> Any:  # noqa: ANN401  (the kind's answers)
        """Return the answer to a query; ``evaluate`` answers all queries of its ``kind``.

        Raises ``PendingEstimateError`` for a new query while a batch is collected.
        """
        try:
            return self._cache[kind, sizes]
        except KeyError:
            pass
        if self._collecting:
            self._pending.setdefault(kind, (evaluate, {}))[1][sizes] = None
            raise PendingEstimateError
        (answer,) = evaluate([sizes])
        return answer

    def estimate(self, weights: Weights, device: Hardware, query: Query) -> KernelEstimate:
        """Return the estimate of a family's model for a query with scalar sizes.

        Raises ``PendingEstimateError`` as ``answer`` does.
        """
        names = tuple(query.sizes)
        sizes = (*query.sizes.values(), weights.family.ops.index(query.op))
        evaluate = partial(_run_queries, weights, device, names)
        estimates: KernelEstimate = self.answer((weights.family.name, names), evaluate, sizes)
        return estimates


def _run_queries(
    weights: Weights, device: Hardware, names: tuple[str, ...], queries: list[QuerySizes]
) -> list[KernelEstimate]:
    columns = dict(zip((*names, "op"), np.array(queries, np.float32).T.copy(), strict=True))
    estimates: Estimates = estimate(weights, columns, device)
    rows = zip(
        estimates.time.tolist(), estimates.width.tolist(), estimates.outside.tolist(), strict=True
    )
    return list(rows)


class BatchedModels(dict[str, Predictor]):
    """Trained models by family, with batched queries.

    Attributes:
        batch: the batch of their queries.
    """

    def __init__(self, models: Mapping[str, Predictor], batch: QueryBatch) -> None:
        super().__init__(models)
        self.batch = batch
