"""A cache of estimates: a call that splits its points queries each part again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats
from costmodels.learned.infer import Estimates

MAX_KINDS = 64
"""Maximum number of kinds of kernels in a cache."""


class _Kind(Struct, frozen=True):
    """Kernels that differ in one or two sizes.

    Attributes:
        codes: their sizes as integers, sorted.
        estimates: estimate of each.
    """

    codes: NDArray[np.unsignedinteger]
    estimates: Estimates


class EstimateCache:
    """Cache of the estimates of one family on one device, by the sizes of its kernels."""

    def __init__(self) -> None:
        self._kinds: dict[object, _Kind] = {}

    def estimates(
        self, columns: Mapping[str, Floats], compute: Callable[[Mapping[str, Floats]], Estimates]
    ) -> Estimates:
        """Return estimates of kernels, computing only new ones.

        ``columns`` has the sizes by name, ``float32[rows]`` each.
        """
        is_constant = {name: (column == column[0]).all() for name, column in columns.items()}
        varying = [columns[name] for name, same in is_constant.items() if not same]
        if len(varying) not in (1, 2):
            return compute(columns)
        kind = tuple(float(columns[n][0]) if same else None for n, same in is_constant.items())
        codes, first, positions = _distinct(_codes(varying))
        cached = self._kinds.get(kind)
        new = ~np.isin(codes, cached.codes) if cached is not None else np.ones(len(codes), bool)
        if new.any():
            new_estimates = compute({name: column[first[new]] for name, column in columns.items()})
            cached = self._store(kind, _merge(cached, _Kind(codes[new], new_estimates)))
        assert cached is not None
        return _rows(cached.estimates, np.asarray(cached.codes.searchsorted(codes))[positions])

    def _store(self, key: object, kind: _Kind) -> _Kind:
        while key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[key] = kind
        return kind


def _distinct(
    codes: NDArray[np.unsignedinteger],
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.intp], NDArray[np.intp]]:
    """Return distinct codes, sorted, the first index of each, and the index of every code."""
    if (codes[1:] > codes[:-1]).all():
        positions = np.arange(len(codes))
        return codes, positions, positions
    return np.unique(codes, return_index=True, return_inverse=True)


def _codes(columns: list[Floats]) -> NDArray[np.unsignedinteger]:
    """Return an integer for each row: the concatenated bits of its sizes."""
    first, *others = (np.ascontiguousarray(c, np.float32).view(np.uint32) for c in columns)
    for other in others:
        return (first.astype(np.uint64) << np.uint64(32)) | other
    return first


def _merge(first: _Kind | None, second: _Kind) -> _Kind:
    if first is None:
        return second
    codes = np.concatenate([first.codes, second.codes])
    order = np.argsort(codes)
    columns = [
        np.concatenate([getattr(first.estimates, name), getattr(second.estimates, name)])
        for name in Estimates.__struct_fields__
    ]
    return _Kind(codes[order], _rows(Estimates(*columns), order))


def _rows(estimates: Estimates, positions: NDArray[np.intp]) -> Estimates:
    return Estimates(*(getattr(estimates, name)[positions] for name in Estimates.__struct_fields__))
