"""Statistics of overhead samples, and which samples count as outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from irgraph.diagnostics import fail, suggestion
from irgraph.overheads.format import Stat

Values = npt.NDArray[np.float64]
Rule = Callable[[Values], Values]
"""Maps all samples of one statistic, sorted, to the samples that count."""


def keep_all(values: Values) -> Values:
    """Return every sample: the mean times the count is then the measured time."""
    return values


def within_whiskers(values: Values) -> Values:
    """Return samples within 1.5 interquartile ranges of the quartiles (the paper, III-C)."""
    low, high = np.quantile(values, (0.25, 0.75))
    reach = 1.5 * (high - low)
    inliers: Values = values[(values >= low - reach) & (values <= high + reach)]
    return inliers


def trim_tails(values: Values) -> Values:
    """Return the samples between the 5 % and the 95 % quantile."""
    low, high = np.quantile(values, (0.05, 0.95))
    inliers: Values = values[(values >= low) & (values <= high)]
    return inliers if len(inliers) else values


def median_only(values: Values) -> Values:
    """Return only the median."""
    return np.array([np.median(values)])


RULES: Mapping[str, Rule] = {
    "all": keep_all,
    "whiskers": within_whiskers,
    "trimmed": trim_tails,
    "median": median_only,
}
"""Outlier rules by name. ``all`` is the default: overheads are skewed to the right, so any rule
that cuts the tail biases the mean low, and time that is not overhead (waits, data loading) has
already been removed by its cause."""

QUANTILES = {"p05": 0.05, "p50": 0.5, "p95": 0.95}


def find_rule(name: str) -> Rule:
    """Return an outlier rule by name; ``IrgraphError`` names the nearest one."""
    if name not in RULES:
        message = f"unknown outlier rule {name!r}{suggestion(name, RULES)}"
        raise fail(message, hint=f"known: {', '.join(RULES)}", exit_code=2)
    return RULES[name]


def stat(times: Sequence[float], rule: Rule = keep_all, source: str = "") -> Stat:
    """Return the statistics of samples in microseconds, without outliers."""
    values = np.sort(np.asarray(times, float))
    inliers = rule(values)
    cuts = np.quantile(values, list(QUANTILES.values()))
    quantiles = {name: round(float(q), 3) for name, q in zip(QUANTILES, cuts, strict=True)}
    return Stat(
        round(float(inliers.mean()), 4),
        round(float(inliers.std()), 4),
        len(inliers),
        source,
        quantiles,
    )
