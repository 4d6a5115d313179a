"""Host times of a replay, measured or from similar samples, and their uncertainty."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from irgraph.overheads.rules import Rule, keep_all
from irgraph.overheads.samples import HostSample, Samples
from irgraph.schedule.tasks import Floats

LEVELS = {
    "shapes": "of the same operation on the same shapes",
    "name": "of the same operation",
    "place": "means over operations in the same place",
    "kind": "means over operations",
    "measured": "unknown there and taken as measured here",
}
"""Sources of the time of a sample, best first, with their descriptions."""

OPERATION_LEVELS = ("shapes", "name")
"""Levels with samples of the operation itself."""

MIN_SAMPLES = 3
"""Minimum number of samples whose deviation is used."""


class SampleGroup(Struct, frozen=True):
    """Samples that are similar to a sample and determine its time.

    Attributes:
        times: microseconds each, ``float64[n]``.
        level: kind of similarity, a key of ``LEVELS``.
        mean: microseconds, of the samples that count.
    """

    times: Floats
    level: str
    mean: float = 0.0


class RelativeSpread(Struct, frozen=True):
    """Relative standard deviations of a charged time (log-normal).

    Attributes:
        common: of the charged figure, whose error is the same for all occurrences.
        individual: of each occurrence.
    """

    common: float
    individual: float


class HostTimes(Struct, frozen=True):
    """Host times of a replay: each sample as measured, or statistics of similar samples.

    Attributes:
        samples: of the statistics; with ``None`` every sample is charged as measured.
        rule: selects the samples that count.
        scale: factor for a host of another speed, except for data loading and waits.
        other: whether the samples are of another trace than the replayed one.
        machine_std: relative standard deviation between the machines of both traces.
    """

    samples: Samples | None = None
    rule: Rule = keep_all
    scale: float = 1.0
    other: bool = False
    machine_std: float = 0.0
    _similar_by_key: dict[tuple[tuple[str, str, str], str], SampleGroup] = field(
        default_factory=dict
    )
    _deviation_by_kind: dict[str, float] = field(default_factory=dict)

    def duration(self, sample: HostSample) -> float:
        """Return the microseconds to charge for a sample of host time.

        A launch that found a full queue is charged as one that finds room.
        """
        if self.samples is None or is_loading(sample):
            return sample.time
        similar = self.similar_samples(sample)
        if similar.level == "measured":
            return sample.time
        return similar.mean if sample.kind == "wait" else self.scale * similar.mean

    def similar_samples(self, sample: HostSample) -> SampleGroup:
        """Return similar samples, from the best of ``LEVELS`` that has any."""
        if sample.kind == "queue":
            sample = replace(sample, kind="T4")
        key = (sample.key, sample.shape)
        if key not in self._similar_by_key:
            self._similar_by_key[key] = self._look_up(sample)
        return self._similar_by_key[key]

    def relative_deviation(self, sample: HostSample) -> RelativeSpread:
        """Return the deviations of a sample's time from the time charged for it.

        If there are few samples, the deviation is the typical one of the kind. The variance of the
        mean of ``n`` samples is the ``n``-th part of theirs; the error of a mean over operations is
        as large as the differences between them.
        """
        similar = self.similar_samples(sample)
        typical = self._typical_deviation(sample.kind)
        if similar.level == "measured":
            return RelativeSpread(0.0, 0.0)
        own_deviation = _relative_deviation(similar.times, typical)
        if similar.level in OPERATION_LEVELS:
            return RelativeSpread(own_deviation / len(similar.times) ** 0.5, own_deviation)
        return RelativeSpread(own_deviation, typical)

    def _look_up(self, sample: HostSample) -> SampleGroup:
        groups = self.samples.by_key if self.samples is not None else {}
        same_name = groups.get(sample.key, [])
        same_kind = {key: group for key, group in groups.items() if key[0] == sample.kind}
        choices: dict[str, list[HostSample]] = {
            "shapes": [s for s in same_name if s.shape == sample.shape],
            "name": same_name,
            "place": [s for key, g in same_kind.items() if key[2] == sample.place for s in g],
            "kind": [s for group in same_kind.values() for s in group],
        }
        for level, candidates in choices.items():
            if candidates:
                times = np.sort([s.time for s in candidates])
                return SampleGroup(times, level, float(self.rule(times).mean()))
        return SampleGroup(np.empty(0), "measured")

    def _typical_deviation(self, kind: str) -> float:
        """Return the median relative deviation of the operations' times of a kind."""
        if kind not in self._deviation_by_kind:
            times: dict[tuple[tuple[str, str, str], str], list[float]] = defaultdict(list)
            for key, group in self.samples.by_key.items() if self.samples is not None else ():
                for sample in group if key[0] == kind else ():
                    times[key, sample.shape].append(sample.time)
            deviations = [
                _relative_deviation(np.array(t), 0.0)
                for t in times.values()
                if len(t) >= MIN_SAMPLES
            ]
            self._deviation_by_kind[kind] = float(np.median(deviations)) if deviations else 0.0
        return self._deviation_by_kind[kind]


def is_loading(sample: HostSample) -> bool:
    """Return whether a sample is of the data loader, or of the gap after it."""
    return "loader" in (sample.kind, sample.place.removeprefix("behind "))


def _relative_deviation(times: Floats, fallback: float) -> float:
    """Return the relative standard deviation of times, ``fallback`` if there are too few."""
    mean = float(times.mean()) if len(times) else 0.0
    if len(times) < MIN_SAMPLES or mean <= 0.0:
        return fallback
    return float(times.std(ddof=1)) / mean


def launch_ratio(samples: Samples, other: Samples) -> float:
    """Return the ratio of launch times of two hosts: a probe of their speed.

    Only launches of kernels are compared (T4), by runtime function, weighted by the number of
    launches that both hosts made.
    """
    pairs = []
    for key, own_group in samples.by_key.items():
        other_group = other.by_key.get(key)
        if key[0] == "T4" and key[2] == "kernel" and other_group:
            means = [float(np.mean([s.time for s in group])) for group in (own_group, other_group)]
            pairs.append((means[0] / means[1], min(len(own_group), len(other_group))))
    total = sum(count for _, count in pairs)
    return sum(ratio * count for ratio, count in pairs) / total if total else 1.0


def share_by_level(samples: Samples, host_times: HostTimes) -> dict[str, float]:
    """Return the shares of the measured host time by the source of its replay (``LEVELS``).

    Data loading is omitted: it is always charged as measured.
    """
    times = dict.fromkeys(LEVELS, 0.0)
    for sample in (s for group in samples.by_key.values() for s in group if not is_loading(s)):
        times[host_times.similar_samples(sample).level] += max(0.0, sample.time)
    total = sum(times.values()) or 1.0
    return {level: time / total for level, time in times.items()}
