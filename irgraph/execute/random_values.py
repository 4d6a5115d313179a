"""Values of tensors that exist before a step, drawn from a seed and the tensor's name."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import torch

from irgraph.execute.integer_constraints import (
    BagLengths,
    BagStarts,
    ExactValues,
    IndexRange,
    Rule,
    integer_rules,
    is_copy,
)
from irgraph.execute.torch_values import DTYPES, Torch, view_of
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import arguments_of, bind, resolve
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

TAME, SIGNED, WIDE, UNDEFINED = "tame", "signed", "wide", "undefined"
"""Ways to draw values: floats that are not parameters between 0 and 1; of both signs; of many
magnitudes, with zeros; of both signs, with nan in the inputs of the step."""

CRITICAL, TIED, LARGE, SMALL = "critical", "tied", "large", "small"
"""More ways: at, near and beyond the constants of the step, zeros of both signs among them; small
integers, with rows of zeros; large, some tensors of one sign only, integers of all magnitudes of
their types; tiny."""

INFINITE, SCALED = "infinite", "scaled"
"""More ways: with infinities in the inputs of the step; every tensor at a random scale."""

MAX_CONSTANTS = 24
"""Maximum number of constants of a step near which values are drawn."""

MAX_CONSTANT = 1e6
"""Largest magnitude of constants near which values are drawn."""

EXTREMES = (0.0, -0.0, 1.0, 3.0, 6.0, 1000.0)
"""Critical values of any step."""

MIN_EXPONENT = -12
"""Exponent (base ten) of the smallest magnitude of single elements in ``WIDE`` draws."""

MAX_MAGNITUDE = 10.0
"""Magnitude of the largest and of the smallest element in ``WIDE`` draws, except of parameters."""

SPECIAL_INTERVAL = 8
"""Average number of elements per special one (zero or nan), in draws that have them."""

MAX_UNCONSTRAINED = 100
"""Largest magnitude of integers and scalars that no op constrains, except in ``LARGE`` draws."""

MAX_INTEGER = 1 << 40
"""Largest magnitude of integers in ``LARGE`` draws: narrower types overflow, sums of i64 do not."""

POSITIVE_ARGUMENTS = ("exp_avg_sqs", "max_exp_avg_sqs", "state_steps", "running_var")
"""Arguments of any op that must not be negative."""

SIGN_PRESERVING_OPS = ("maximum", "add", "mul", "div")
"""Ops besides copies whose result is not negative if their operands are not."""


class Drawer:
    """Draws values; equal names get equal values in every graph in which they have the same role.

    Parameters are within plus or minus one over the root of their fan-in. Tensors of which a step
    computes the root or the logarithm are never negative.
    """

    def __init__(self, graph: Graph, seed: int, manner: str = TAME) -> None:
        self._seed = seed
        self._manner = manner
        self._rules: Mapping[str, Sequence[Rule]] = integer_rules(graph)
        self._positive = _positive_buffers(graph)
        self._shares = _share_buffers(graph)
        self._critical = EXTREMES + constants_of(graph)
        roles = {d.role for d in graph.tensors if DTYPES[d.tensor.dtype].is_floating_point}
        self._undefined = "input" if "input" in roles else "param"

    def generator(self, *key: object) -> torch.Generator:
        """Return a separate source of random numbers for a key."""
        return torch.Generator().manual_seed(zlib.crc32(repr((self._seed, *key)).encode()))

    def fill(self, tensor: Tensor, view: Torch, role: str) -> None:
        """Fill a tensor's memory by its role."""
        view.copy_(self._bounded(tensor, self._values(tensor, role)))

    def apply_rules(self, buffer: str, storage: Torch, shift: int = 0) -> None:
        """Redraw the integers of a buffer that ops use as row numbers, starts or lengths."""
        rules = sorted(self._rules.get(buffer, ()), key=_strictness)
        for number, rule in enumerate(rules):
            source = self.generator(rule.tensor.name, rule.tensor.offset, number)
            view = without_repetitions(view_of(storage, rule.tensor, shift))
            view.copy_(self._values_for_rule(rule, view.shape, source))

    def _values_for_rule(self, rule: Rule, shape: Sequence[int], source: torch.Generator) -> Torch:
        if isinstance(rule, BagStarts):
            return _draw_starts(rule, source)
        if isinstance(rule, BagLengths):
            return _draw_lengths(rule, source)
        if isinstance(rule, ExactValues):
            return torch.tensor(rule.values).view(tuple(shape))
        if rule.distinct:
            count = math.prod(shape)
            rows = torch.randperm(rule.below, generator=source)
            return rows.repeat(-(-count // max(rule.below, 1)))[:count].view(tuple(shape))
        values = torch.randint(max(rule.below, 1), shape, generator=source)
        if rule.extra is not None and self._manner in (WIDE, CRITICAL):
            values[_special_mask(shape, source)] = rule.extra
        return values

    def _values(self, tensor: Tensor, role: str) -> Torch:
        shape = tuple(map(int, tensor.shape))
        dtype = DTYPES[tensor.dtype]
        source = self.generator(tensor.name)
        if not (dtype.is_floating_point or dtype.is_complex):
            return self._integers(dtype, shape, source)
        positive = role != "param" and (self._manner == TAME or tensor.buffer in self._positive)
        values = torch.rand(shape, generator=source, dtype=torch.float64)
        if not positive:
            values.mul_(2).sub_(1).mul_(1 if shape else MAX_UNCONSTRAINED)
        if role == "param":
            fan = max(tensor.numel // max(shape[0], 1), 1) if shape else 1
            values.mul_(min(fan**-0.5, 0.5))
        if not shape:
            return values
        if self._manner == WIDE:
            ends = () if role == "param" else (0.0 if positive else -MAX_MAGNITUDE, MAX_MAGNITUDE)
            return self._with_wide_magnitudes(values, source, ends)
        special = SPECIAL_VALUES.get(self._manner)
        if special is not None:
            if role == self._undefined:
                values[_special_mask(shape, source)] = special
                values[_special_mask(shape, source)] = special if positive else -special
            return values
        if self._manner in RESCALED:
            values = self._rescaled(values, role, source)
        elif self._manner == CRITICAL:
            values = self._near_constants(values, source)
        elif self._manner == TIED:
            values = _tied(values, role, source)
        return values.abs() if positive else values

    def _bounded(self, tensor: Tensor, values: Torch) -> Torch:
        """Return values between 0 and 1 for a tensor that an op requires to be a share."""
        is_share = tensor.buffer in self._shares and values.is_floating_point()
        return values.abs().clamp(max=1) if is_share else values

    def _rescaled(self, values: Torch, role: str, source: torch.Generator) -> Torch:
        """Scale a tensor as a unit, and give it one sign in one of two cases."""
        low, high = RESCALED[self._manner]
        if role == "param" and self._manner != SCALED:
            low, high = low / 3, high / 3
        share, sign = torch.rand(2, generator=source, dtype=torch.float64).tolist()
        scaled = values * 10 ** (low + (high - low) * share)
        if sign < 0.25:
            return scaled.abs()
        return -scaled.abs() if sign < 0.5 else scaled

    def _near_constants(self, values: Torch, source: torch.Generator) -> Torch:
        """Replace half of the elements by critical values and their neighbours."""
        critical = torch.tensor(self._critical, dtype=torch.float64)
        chosen = critical[torch.randint(len(critical), values.shape, generator=source)]
        factor = NEIGHBOURS[torch.randint(NEIGHBOURS.numel(), values.shape, generator=source)]
        replaced = torch.rand(values.shape, generator=source) < 0.5
        return torch.where(replaced, chosen * factor, values)

    def _with_wide_magnitudes(
        self, values: Torch, source: torch.Generator, ends: Sequence[float]
    ) -> Torch:
        """Scale a tensor by a random magnitude, a quarter of its elements separately; add zeros."""
        scale, samples = (
            torch.rand(n, generator=source, dtype=torch.float64) for n in ((), values.shape)
        )
        exponents = torch.where(samples < 0.25, MIN_EXPONENT * 4 * samples, -3 * scale)
        values.mul_(10**exponents)
        values[_special_mask(tuple(values.shape), source)] = 0
        flat = values.view(-1)
        if ends and len(flat) > 1:
            flat[flat.argmin()], flat[flat.argmax()] = ends
        return values

    def _integers(self, dtype: torch.dtype, shape: Sequence[int], source: torch.Generator) -> Torch:
        if dtype == torch.bool or self._manner == TAME:
            return torch.randint(2, tuple(shape), generator=source)
        limits = torch.iinfo(dtype)
        if self._manner == LARGE:
            high = min(limits.max, MAX_INTEGER)
            values = torch.randint(max(-high, limits.min), high, tuple(shape), generator=source)
            digits = high.bit_length()
            shifts = torch.randint(-digits, digits, tuple(shape), generator=source)
            return values >> shifts.clamp(min=0)  # half of them remain
        low = max(-MAX_UNCONSTRAINED, limits.min)
        return torch.randint(low, MAX_UNCONSTRAINED + 1, tuple(shape), generator=source)


SPECIAL_VALUES = {UNDEFINED: math.nan, INFINITE: math.inf}
"""Special elements, by the way in which values are drawn."""

RESCALED = {LARGE: (0.0, 3.5), SMALL: (-9.0, -3.0), SCALED: (-4.0, 4.0)}
"""Smallest and largest exponent (base ten) of a tensor's scale."""

NEIGHBOURS = torch.tensor(
    (1, 1, -1, 1 + 2**-20, 1 - 2**-20, 1 + 2**-51, 1 - 2**-52, 1.5, 0.5, -1.5, 10, -10),
    dtype=torch.float64,
)
"""Multiples of constants at which values are drawn."""

ZERO_ROW_INTERVAL = 4
"""Interval of rows of parameters that are zero in ``TIED`` draws: units with exact zeros."""


def _tied(values: Torch, role: str, source: torch.Generator) -> Torch:
    """Return small integers and halves, of which many are equal."""
    integers = torch.randint(-2, 3, values.shape, generator=source, dtype=torch.int64).double()
    if role == "param":
        integers[::ZERO_ROW_INTERVAL] = 0
        return integers / 2
    halves = torch.randint(2, values.shape, generator=source) / 2
    return integers + halves


@cached_per_graph
def constants_of(graph: Graph) -> tuple[float, ...]:
    """Return the magnitudes of the constants of a step, except zero, the most frequent first."""
    counts: Counter[float] = Counter()
    for op in graph.leaves():
        counts.update(abs(n) for n in _numbers((*op.operands, *op.attributes.values())))
        counts.update(abs(n) for n in _defaults(op, graph))
    usable = (n for n, _ in counts.most_common() if 0 < n <= MAX_CONSTANT)
    return tuple(islice(usable, MAX_CONSTANTS))


def _defaults(op: Op, graph: Graph) -> Iterator[float]:
    """Yield the defaults of an op's real arguments."""
    schema = resolve(op, graph.schemas) if not op.is_scope else None
    for argument in schema.arguments if schema else ():
        if argument.type in ("Scalar", "float") and argument.default is not None:
            with suppress(ValueError):
                yield float(argument.default)


def _numbers(values: Sequence[Value]) -> Iterator[float]:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield float(value)


def without_repetitions(view: Torch) -> Torch:
    """Return an expanded view without its repetitions, which cannot be written."""
    for axis, stride in enumerate(view.stride()):
        view = view if stride else view.narrow(axis, 0, min(1, view.shape[axis]))
    return view


def _special_mask(shape: Sequence[int], source: torch.Generator) -> Torch:
    """Return a mask of special elements: one in ``SPECIAL_INTERVAL``, at least one of several."""
    samples = torch.rand(tuple(shape), generator=source)
    if not samples.numel():
        return samples > 0
    return (samples * SPECIAL_INTERVAL < 1) | ((samples == samples.amin()) & (samples.numel() > 1))


def _strictness(rule: Rule) -> tuple[bool, int]:
    """Return a sort key by which later rules draw values that also obey the earlier ones."""
    return not isinstance(rule, IndexRange), -rule.below if isinstance(rule, IndexRange) else 0


def _draw_lengths(rule: BagLengths, source: torch.Generator) -> Torch:
    """Draw lengths of bags that add up to the total; some bags are empty."""
    ends = torch.randint(rule.total + 1, (rule.tensor.numel,), generator=source).sort().values
    ends[-1:] = rule.total
    return ends.diff(prepend=ends.new_zeros(1))


def _draw_starts(rule: BagStarts, source: torch.Generator) -> Torch:
    """Draw starts of bags; lengths differ, and some bags are empty."""
    count = rule.tensor.numel
    starts, _ = torch.randint(rule.total + 1, (count,), generator=source).sort()
    starts[:1] = 0
    if rule.closed:
        starts[-1:] = rule.total
    return starts.view(tuple(map(int, rule.tensor.shape)))


@cached_per_graph
def _positive_buffers(graph: Graph) -> set[str]:
    """Return the buffers of which an op computes a root or a logarithm, directly or indirectly."""
    buffers: set[str] = set()
    for op in reversed(list(graph.leaves())):
        buffers.update(tensor.buffer for tensor in _positive_operands(op, graph, buffers))
    return buffers


@cached_per_graph
def _share_buffers(graph: Graph) -> set[str]:
    """Return the buffers of targets that must be between 0 and 1, and of their sources."""
    buffers: set[str] = set()
    for op in reversed(list(graph.leaves())):
        if op.base in ("binary_cross_entropy", "binary_cross_entropy_backward"):
            target = arguments_of(op, graph.schemas).get("target")
            buffers.update(tensor.buffer for tensor in tensors_in((target,)))
        elif is_copy(op) and buffers.intersection(t.buffer for t in op.outputs):
            buffers.update(tensor.buffer for tensor in op.inputs)
    return buffers


def _positive_operands(op: Op, graph: Graph, buffers: set[str]) -> Iterator[Tensor]:
    base = op.base.removeprefix("_foreach_").rstrip("_")
    preserves_sign = base in SIGN_PRESERVING_OPS or op.name in names_with(Trait.DUPLICATE)
    if f"aten.{base}" in names_with(Trait.NONNEGATIVE) or (
        preserves_sign and buffers.intersection(t.buffer for t in op.outputs)
    ):
        yield from op.inputs
        return
    schema = resolve(op, graph.schemas) if not op.is_scope else None
    for argument, value in bind(schema, op) if schema else ():
        if argument.name in POSITIVE_ARGUMENTS:
            yield from tensors_in((value,))
