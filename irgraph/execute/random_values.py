"""Values of tensors that exist before a step, drawn from a seed and the tensor's name."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from irgraph.execute.integer_constraints import (
    BagLengths,
    BagStarts,
    ExactValues,
    IndexRange,
    Rule,
    integer_rules,
)
from irgraph.execute.torch_values import DTYPES, Torch, view_of
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.schema import bind, resolve
from irgraph.ir.tensor import Tensor

TAME, SIGNED, WIDE, UNDEFINED = "tame", "signed", "wide", "undefined"
"""Ways to draw values: floats that are not parameters between 0 and 1; of both signs; of many
magnitudes, with zeros; of both signs, with nan in the inputs of the step."""

MIN_EXPONENT = -12
"""Exponent (base ten) of the smallest magnitude of single elements in ``WIDE`` draws."""

MAX_MAGNITUDE = 10.0
"""Magnitude of the largest and of the smallest element in ``WIDE`` draws, except of parameters."""

SPECIAL_INTERVAL = 8
"""Average number of elements per special one (zero or nan), in draws that have them."""

MAX_UNCONSTRAINED = 100
"""Largest magnitude of integers and scalars that no op constrains."""

POSITIVE_OPERAND_OPS = (
    "sqrt",
    "rsqrt",
    "log",
    "log2",
    "log10",
    "bernoulli",
    "binary_cross_entropy",
)
"""Ops whose operands must not be negative, by names without list prefix and in-place suffix."""

POSITIVE_ARGUMENTS = ("exp_avg_sqs", "max_exp_avg_sqs", "state_steps", "running_var")
"""Arguments of any op that must not be negative."""

SIGN_PRESERVING_OPS = ("maximum", "add", "mul", "div", "clone", "_to_copy", "to")
"""Ops whose result is not negative if their operands are not."""


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
        roles = {d.role for d in graph.tensors if DTYPES[d.tensor.dtype].is_floating_point}
        self._undefined = "input" if "input" in roles else "param"

    def generator(self, *key: object) -> torch.Generator:
        """Return a separate source of random numbers for a key."""
        return torch.Generator().manual_seed(zlib.crc32(repr((self._seed, *key)).encode()))

    def fill(self, tensor: Tensor, view: Torch, role: str) -> None:
        """Fill a tensor's memory by its role."""
        view.copy_(self._values(tensor, role))

    def apply_rules(self, buffer: str, storage: Torch, shift: int = 0) -> None:
        """Redraw the integers of a buffer that ops use as row numbers, starts or lengths."""
        rules = sorted(self._rules.get(buffer, ()), key=_strictness)
        for number, rule in enumerate(rules):
            source = self.generator(rule.tensor.name, rule.tensor.offset, number)
            view = _without_repetitions(view_of(storage, rule.tensor, shift))
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
        if rule.extra is not None and self._manner == WIDE:
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
        if self._manner == WIDE and shape:
            ends = () if role == "param" else (0.0 if positive else -MAX_MAGNITUDE, MAX_MAGNITUDE)
            return self._with_wide_magnitudes(values, source, ends)
        if self._manner == UNDEFINED and role == self._undefined:
            values[_special_mask(shape, source)] = math.nan
        return values

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
        low = max(-MAX_UNCONSTRAINED, torch.iinfo(dtype).min)
        return torch.randint(low, MAX_UNCONSTRAINED + 1, tuple(shape), generator=source)


def _without_repetitions(view: Torch) -> Torch:
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


def _positive_buffers(graph: Graph) -> set[str]:
    """Return the buffers of which an op computes a root or a logarithm, directly or indirectly."""
    buffers: set[str] = set()
    for op in reversed(list(graph.leaves())):
        buffers.update(tensor.buffer for tensor in _positive_operands(op, graph, buffers))
    return buffers


def _positive_operands(op: Op, graph: Graph, buffers: set[str]) -> Iterator[Tensor]:
    base = op.base.removeprefix("_foreach_").rstrip("_")
    if base in POSITIVE_OPERAND_OPS or (
        base in SIGN_PRESERVING_OPS and buffers.intersection(t.buffer for t in op.outputs)
    ):
        yield from op.inputs
        return
    schema = resolve(op, graph.schemas) if not op.is_scope else None
    for argument, value in bind(schema, op) if schema else ():
        if argument.name in POSITIVE_ARGUMENTS:
            yield from tensors_in((value,))
