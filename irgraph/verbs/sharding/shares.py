"""Sizes of the whole step and of one rank, as expressions over the rank's dimensions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from msgspec.structs import replace

from irgraph.axes.algebra import Algebra, terms_of
from irgraph.ir.dim import Dim
from irgraph.ir.op import Value
from irgraph.ir.resize import DimSubstitution
from irgraph.ir.tensor import Tensor
from irgraph.ops.places import ONCE, Outer


class Shares:
    """The arithmetic of sizes if ranks share some dimensions.

    A shared dimension is ``ranks`` times as large in the whole step as on a rank: ``B`` of the
    whole step is ``4*B`` on each of four ranks.

    Attributes:
        ranks: number of ranks.
        split_dims: names of the dimensions that are split over ranks.
        dims: the dimensions of a rank.
    """

    def __init__(self, dims: Mapping[str, int], split_dims: Collection[str], ranks: int) -> None:
        self.ranks = ranks
        self.split_dims = frozenset(split_dims)
        self.dims = {
            name: size // ranks if name in self.split_dims else size for name, size in dims.items()
        }
        self._whole_sizes: dict[object, int] = {}
        self._tensors: dict[str, Tensor] = {}

    @cached_property
    def algebra(self) -> Algebra:
        """The arithmetic over the dimensions of a rank."""
        return Algebra(self.dims)

    @cached_property
    def local(self) -> DimSubstitution:
        """The substitution that reads a size of the whole step as a size of a rank."""
        return DimSubstitution(self.dims)

    def depends(self, size: object) -> bool:
        """Return whether a size depends on a shared dimension."""
        if not isinstance(size, Dim):
            return False
        return any(not self.split_dims.isdisjoint(names) for names, _ in size.terms)

    def whole_size(self, size: int) -> int:
        """Return a size of the whole step over the dimensions of a rank."""
        if type(size) is not Dim or not self.depends(size):
            return size
        cached = self._whole_sizes.get(size.terms)
        if cached is None:
            terms = [(names, count * self._multiple(names)) for names, count in size.terms]
            cached = self._whole_sizes[size.terms] = self.algebra.make(terms)
        return cached

    def _multiple(self, names: tuple[str, ...]) -> int:
        multiple = 1
        for name in names:
            if name in self.split_dims:
                multiple *= self.ranks
        return multiple

    def share(self, size: int) -> int | None:
        """Return a rank's part of a size of the whole step, ``None`` if ranks cannot share it.

        Parts are equal for all sizes of the dimensions.
        """
        terms = terms_of(self.whole_size(size))
        if any(count % self.ranks for _, count in terms):
            return None
        return self.algebra.make((names, count // self.ranks) for names, count in terms)

    def has_share_of_runs(self, size: int, runs: Outer) -> bool:
        """Return whether ranks can share each of several equal runs of a size."""
        if runs == ONCE:
            return self.share(size) is not None
        run = self.algebra.divide(self.whole_size(size), self.algebra.make(runs))
        return run is not None and not any(count % self.ranks for _, count in terms_of(run))

    def runs(self, runs: Outer) -> Outer:
        """Return a number of runs over the dimensions of a rank."""
        return tuple((names, count * self._multiple(names)) for names, count in runs)

    def quotient(self, runs: Outer, divisor: Outer) -> Outer | None:
        """Return a number of runs divided by another, ``None`` if it is no polynomial."""
        ratio = self.algebra.divide(self.algebra.make(runs), self.algebra.make(divisor))
        return None if ratio is None else terms_of(ratio)

    def whole_value(self, value: Value) -> Value:
        """Return an argument with the sizes of the whole step."""
        if isinstance(value, tuple):
            return tuple(map(self.whole_value, value))
        return self.whole_size(value) if type(value) is Dim else value

    def whole_tensor(self, tensor: Tensor) -> Tensor:
        """Return the type of a tensor that is complete on a rank."""
        cached = self._tensors.get(tensor.name)
        if cached is None:
            cached = self._tensors[tensor.name] = self._whole_tensor(tensor)
        return cached

    def _whole_tensor(self, tensor: Tensor) -> Tensor:
        strides = tensor.strides
        if not any(map(self.depends, (*tensor.shape, *(strides or ()), tensor.offset))):
            return tensor
        return replace(
            tensor,
            shape=tuple(map(self.whole_size, tensor.shape)),
            strides=None if strides is None else tuple(map(self.whole_size, strides)),
            offset=self.whole_size(tensor.offset),
        )

    def split_shape(self, tensor: Tensor, axis: int) -> tuple[int, ...]:
        """Return the shape of a rank's block of a tensor that ranks can share along an axis."""
        shape = list(map(self.whole_size, tensor.shape))
        block = self.share(tensor.shape[axis])
        assert block is not None
        shape[axis] = block
        return tuple(shape)
