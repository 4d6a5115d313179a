"""The laws of declarations, with torch as the oracle: small calls are run whole and in parts.

A call of a captured step is shrunk by its letters, so that it runs in microseconds in f64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from math import isinf

import torch
from msgspec.structs import replace

from irgraph.execute.callables import Computation, computation
from irgraph.execute.machine import without_autograd
from irgraph.ir.dim import evaluate
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DType, Tensor
from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ops.book import meaning_of
from irgraph.ops.call import Call
from irgraph.ops.live_out import saves_auxiliaries
from irgraph.ops.local import local_call
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Joined, Meaning, Merged
from irgraph.ops.places import OWN, Claim, Place, claims
from irgraph.text import parse

UNDEFINED = ("empty", "new_empty")
"""Beginnings of names of ops whose results have no defined elements."""

RANKS = 2
MAX_WINDOW = 12
"""Largest size of a letter along which windows move; smaller images have no position."""

TAP = re.compile(r"[kst]\d+")
"""Letters of windows: their taps, places and positions."""

GRAPH = parse('model "law" { format = 1 }\n\ndevice @gpu0 "v100"\n')


class UnrunnableError(Exception):
    """A call that cannot be shrunk or run."""


def sizes_of(op: Op, meaning: Meaning) -> dict[str, int]:
    """Return the size of each letter of a call that has an axis of its own."""
    sizes: dict[str, int] = {}
    tensors = (*op.inputs, *op.outputs)
    axes = (*meaning.operands, *(result.axes for result in meaning.results))
    for tensor, names in zip(tensors, axes, strict=False):
        for size, name in zip(tensor.shape, names, strict=True):
            if isinstance(name, str) and name not in (ONE, OPAQUE):
                sizes[name] = int(size)
    return sizes


def shrunk(op: Op, meaning: Meaning) -> Op:
    """Return a call with small, different, even sizes. Raises ``UnrunnableError``."""
    return with_sizes(op, meaning, small_sizes(op, meaning))


def small_sizes(op: Op, meaning: Meaning) -> dict[str, int]:
    """Return small, different, even sizes of letters; those that are fixed stay."""
    old = sizes_of(op, meaning)
    even = count(4, 2)
    windows = {letter for slope in meaning.slopes for letter in (slope.cause, slope.effect)}
    sizes: dict[str, int] = {}
    for letter in meaning.letters():
        size = old.get(letter, 0)
        is_window = letter in windows or (letter in meaning.mixed and TAP.fullmatch(letter))
        if letter in meaning.fixed:
            sizes[letter] = meaning.sizes.get(letter, size)
        elif is_window or meaning.sizes_by_torch:
            sizes[letter] = min(size, MAX_WINDOW) if letter in windows else size
        elif size in (0, 1, 2):
            sizes[letter] = size or next(even)
        else:
            sizes[letter] = next(even)
    return sizes


def with_sizes(op: Op, meaning: Meaning, sizes: Mapping[str, int]) -> Op:
    """Return a call whose operands and arguments have given sizes by letter, without results."""
    shapes = iter(meaning.operands)

    def tensor(old: Tensor) -> Tensor:
        shape = shape_of(next(shapes), old.shape, sizes)
        return replace(old, shape=shape, strides=None)

    def value(old: Value) -> Value:
        if isinstance(old, Tensor):
            return tensor(old)
        return tuple(map(value, old)) if isinstance(old, tuple) else old

    operands = tuple(map(value, op.operands))
    attributes = {name: value(old) for name, old in op.attributes.items()}
    if isinstance(attributes.get("dtype"), DType) and attributes["dtype"] in FLOATS:
        attributes["dtype"] = DType("f64")
    for (name, index), axis in meaning.arguments.items():
        (size,) = shape_of((axis,), (0,), sizes)
        given = attributes.get(name)
        if index < 0 and given is not None:
            attributes[name] = size
        elif isinstance(given, tuple):
            attributes[name] = (*given[:index], size, *given[index + 1 :])
    return replace(op, operands=operands, attributes=attributes, body=())


def shape_of(axes: Axes, old: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor with given sizes by letter; opaque axes stay."""
    shape = []
    for axis, size in zip(axes, old, strict=True):
        if axis == ONE:
            shape.append(1)
        elif axis == OPAQUE:
            shape.append(int(size))
        elif isinstance(axis, Merged):
            product = 1
            for letter in axis.letters:
                product *= sizes[letter]
            shape.append(product)
        elif isinstance(axis, Joined):
            shape.append(sum(sizes[letter] for letter in axis.letters))
        else:
            shape.append(sizes[axis])
    return tuple(shape)


def drawn(op: Op, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return values of a call's operands: numbers about 1, indices 0 and 1, odd masks."""
    source = torch.Generator().manual_seed(seed)
    values: dict[str, torch.Tensor] = {}
    starts = {op.inputs[i].name for i in Call(op).spans.get("offsets", ())}
    for tensor in op.inputs:
        if tensor.name in values:
            continue
        shape = tuple(map(int, tensor.shape))
        if tensor.dtype.startswith(("f", "bf")):
            value = torch.rand(shape, generator=source, dtype=torch.float64) + 0.5
            value = value.to(precision(op)[0])
        elif tensor.dtype == "bool":
            value = torch.rand(shape, generator=source) > 0.5
        elif tensor.dtype.startswith(("i", "u")):
            dtype = getattr(torch, INTEGERS[tensor.dtype])
            value = torch.randint(0, 2, shape, generator=source).to(dtype)
            if tensor.name in starts:
                value = value.sort().values
                value[:1] = 0
        else:
            raise UnrunnableError(f"values of {tensor.dtype} are not drawn")
        values[tensor.name] = value
    return values


def precision(op: Op) -> tuple[torch.dtype, float]:
    """Return the type of a call's numbers, and the relative difference that counts as equal.

    Ops that round inside are run in f32, to which their tolerance applies.
    """
    custom = custom_ops().get(op.name)
    if custom is not None and custom.tolerance:
        return torch.float32, custom.tolerance
    return torch.float64, 1e-9


FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8"}


def run(op: Op, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a call, then the operands that it writes, as they are afterwards."""
    compute = computation(op, GRAPH)
    if not isinstance(compute, Computation):
        raise UnrunnableError(compute)
    copies = {name: value.clone() for name, value in values.items()}
    with without_autograd(torch.float64):
        try:
            made = compute(op, lambda tensor: copies[tensor.name])
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            raise UnrunnableError(str(error)) from None
    results = made if isinstance(made, (tuple, list)) else [made]
    flat = [r for item in results for r in (item if isinstance(item, (tuple, list)) else [item])]
    tensors = [item for item in flat if isinstance(item, torch.Tensor)]
    tensors = [item.to_dense() if item.is_sparse else item for item in tensors]
    written = [copies[tensor.name] for tensor in Call(op).written]
    if written and len(tensors) and tensors[0] is written[0]:
        tensors = []
    return [*tensors, *written]


def share(size: int) -> int:
    """Return a rank's part of a size."""
    return int(size) // RANKS


def part(value: torch.Tensor, place: Place, rank: int) -> torch.Tensor:
    """Return a rank's part of an operand; a partial sum has all of it on the first rank."""
    if place.kind == "split":
        runs = value.unflatten(place.axis, (runs_of(place), RANKS, -1))
        return runs.select(place.axis + 1, rank).flatten(place.axis, place.axis + 1)
    if place.kind == "partial":
        if not value.is_floating_point():
            raise UnrunnableError("integers are not parted")
        share_of_rank = 0.25 + 0.5 * rank
        return value * (
            min(2 * share_of_rank, 1) if isinf(place.power) else share_of_rank ** (1 / place.power)
        )
    return value


def runs_of(place: Place) -> int:
    """Return the number of runs of a split axis."""
    return evaluate(place.outer, {})


def joined(parts: list[torch.Tensor], place: Place) -> torch.Tensor:
    """Return the whole of what ranks have."""
    if place.kind == "split":
        runs = [p.unflatten(place.axis, (runs_of(place), -1)) for p in parts]
        whole = torch.stack(runs, place.axis + 1).flatten(place.axis, place.axis + 2)
    elif place.kind == "partial" and isinf(place.power):
        whole = torch.maximum(*parts)
    elif place.kind == "partial":
        powers = [p**place.power if place.power != 1 else p for p in parts]
        whole = sum(powers[1:], powers[0])
        whole = whole ** (1 / place.power) if place.power != 1 else whole
    else:
        whole = parts[0]
    return whole / RANKS**place.factor if place.factor else whole


def check_claim(op: Op, meaning: Meaning, claim: Claim) -> str:
    """Return how a claim about a small call is wrong, ``""`` if it is true."""
    values = drawn(op)
    whole = run(op, values)
    if len(whole) != len(claim.results):
        raise UnrunnableError(f"{len(whole)} results, {len(claim.results)} claimed")
    named: dict[str, Place] = {}
    for tensor, place in zip(op.inputs, claim.operands, strict=True):
        if named.setdefault(tensor.name, place) != place:
            raise UnrunnableError("one tensor in two places")
    by_rank = []
    for rank in range(RANKS):
        local = {name: part(value, named[name], rank) for name, value in values.items()}
        by_rank.append(run(local_call(op, meaning, claim.letter, share), local))
    # what lookups save for their backward depends on the kernel
    compared = claim.results[:1] if saves_auxiliaries(op) else claim.results
    for index, place in enumerate(compared):
        if place == OWN:
            continue
        expected = whole[index]
        found = joined([results[index] for results in by_rank], place)
        if found.shape != expected.shape:
            return f"result {index} is {tuple(found.shape)}, not {tuple(expected.shape)}"
        if expected.is_floating_point():
            rtol = precision(op)[1]
            if not torch.allclose(found, expected, rtol=rtol, atol=rtol / 1000, equal_nan=True):
                return f"result {index} is off by {(found - expected).abs().max():.2g}"
        elif not torch.equal(found, expected):
            return f"result {index} differs"
    return ""


def divides(op: Op, claim: Claim) -> bool:
    """Return whether ranks can share all axes that a claim splits."""
    pairs = zip(op.inputs, claim.operands, strict=True)
    return all(t.shape[p.axis] % (RANKS * runs_of(p)) == 0 for t, p in pairs if p.kind == "split")


def with_numbers(claim: Claim, sizes: Mapping[str, int], runs: int = 1) -> Claim:
    """Return a claim whose letter is split in a number of runs, which are numbers everywhere."""

    def numbered(place: Place) -> Place:
        count = evaluate(place.outer, sizes) * runs
        return replace(place, outer=(((), count),)) if place.kind == "split" else place

    operands, results = map(numbered, claim.operands), map(numbered, claim.results)
    return replace(claim, operands=tuple(operands), results=tuple(results))


def numbered_claims(meaning: Meaning, sizes: Mapping[str, int]) -> Iterator[Claim]:
    """Yield every claim about a call, and those along a letter also in two runs."""
    for claim in claims(meaning):
        yield with_numbers(claim, sizes)
        if claim.letter and sizes[claim.letter] % (2 * RANKS) == 0:
            yield with_numbers(claim, sizes, 2)


def broken_claims(op: Op) -> Iterator[tuple[str, Claim, str]]:
    """Yield ``true``, ``false`` or ``not run`` for each claim about a call, and why."""
    meaning = meaning_of(op)
    if meaning is None or meaning.random or op.base.startswith(UNDEFINED):
        return
    try:
        sizes = small_sizes(op, meaning)
        small = with_sizes(op, meaning, sizes)
    except (UnrunnableError, KeyError) as error:
        yield "not run", Claim((), ()), f"not shrunk: {error}"
        return
    for claim in numbered_claims(meaning, sizes):
        if not divides(small, claim):
            yield "not run", claim, "not divisible"
            continue
        try:
            error = check_claim(small, meaning, claim)
        except UnrunnableError as reason:
            yield "not run", claim, str(reason).split("\n")[0]
        else:
            places = ", ".join(map(str, claim.operands))
            shapes = ", ".join(str(tensor.shape) for tensor in small.inputs)
            reason = f"{error} ({shapes} as {places})" if error else ""
            yield ("false" if error else "true"), claim, reason
