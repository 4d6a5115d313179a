"""Calls torch's ops on the CPU, and tells which operands they changed and which irgraph says.

``python -m tests.ir.calling FIRST`` writes a line of JSON for each call from the op of that number
on: ops may crash the process when they are called in ways that no program calls them.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from irgraph.ir.effects import written_by
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Argument, Schema, known_ops, schemas_of
from irgraph.ir.tensor import Tensor

SHAPES = ((4,), (2, 3), (3, 3), (2, 3, 4), (2, 3, 4, 4))
BUFFERS = ("running", "buffer", "state", "exp_avg", "noise", "observer")
PER_CHANNEL = ("running", "save", "weight", "bias", "mean", "invstd", "var")
WHOLE = ("ind", "offset", "target", "counts", "batch_sizes")
NUMBERS: dict[str, Any] = {
    "float": 0.5, "Scalar": 0.5, "int": 1, "SymInt": 1, "str": "mean", "ScalarType": torch.float32,
}  # fmt: skip


def chosen() -> list[Schema]:
    """Return the overloads that have buffers or flags, and write no ``out``."""
    every = (schema for name in known_ops() for schema in schemas_of(name))
    return [s for s in every if s.name.startswith("aten.") and _is_chosen(s)]


def _is_chosen(schema: Schema) -> bool:
    arguments = schema.arguments
    if schema.overload.endswith("out") or any(a.keyword and a.written for a in arguments):
        return False
    flags = any(a.type.startswith("bool") for a in arguments)
    return flags or any(word in a.name for a in arguments for word in BUFFERS)


def _given(argument: Argument, shape: tuple[int, ...], flag: bool, drop: bool) -> Any:
    """Return a value for an argument; ``NotImplemented`` where there is none to think of."""
    kind, name = argument.type.removesuffix("?"), argument.name
    if drop and argument.optional and not name.startswith("running"):
        return None
    if kind.startswith("Tensor"):
        made = _tensor(name, shape)
        return [made] if argument.is_list else made
    if kind.startswith("bool"):
        return [flag] * 3 if argument.is_list else flag
    if argument.default is not None:
        return NotImplemented
    if kind in ("int[]", "SymInt[]"):
        return [1] * max(1, len(shape) - 2)
    return NUMBERS.get(kind, NotImplemented)


def _tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name.startswith(WHOLE):
        return torch.ones(shape[:1], dtype=torch.long)
    if name in ("state_steps", "found_inf", "grad_scale"):
        return torch.full((), 0.0 if name == "found_inf" else 2.0)
    per_channel = name.startswith(PER_CHANNEL) and len(shape) > 1
    return torch.rand(shape[1:2] if per_channel else shape) + 0.5


def _arguments(
    schema: Schema, shape: tuple[int, ...], flag: bool, drop: bool
) -> tuple[list[Any], dict[str, Any]] | None:
    placed: list[Any] = []
    named: dict[str, Any] = {}
    for argument in schema.arguments:
        value = _given(argument, shape, flag, drop)
        if value is NotImplemented and argument.default is None:
            return None
        if value is not NotImplemented and not (argument.keyword or named):
            placed.append(value)
        elif value is not NotImplemented:
            named[argument.name] = value
    return placed, named


def changed(schema: Schema, placed: list[Any], named: dict[str, Any]) -> set[str] | None:
    """Return the names of the arguments that a call changed; nothing where torch refuses it."""
    library, _, base = schema.name.partition(".")
    values = dict(zip((a.name for a in schema.arguments), placed, strict=False)) | named
    held = [(name, t) for name, value in values.items() for t in _tensors(value)]
    before = [t.clone() for _, t in held]
    torch.manual_seed(0)
    try:
        call = getattr(getattr(getattr(torch.ops, library), base), schema.overload or "default")
        with torch.no_grad():
            call(*placed, **named)
    except Exception:
        return None
    pairs = zip(held, before, strict=True)
    return {name for (name, now), was in pairs if not _same(now, was)}


def _same(now: torch.Tensor, was: torch.Tensor) -> bool:
    return now.shape == was.shape and torch.equal(now.nan_to_num(), was.nan_to_num())


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]


def said(schema: Schema, placed: list[Any], named: dict[str, Any]) -> set[str]:
    """Return the names of the arguments that irgraph says the call writes."""
    names = [argument.name for argument in schema.arguments]
    values = dict(zip(names, placed, strict=False)) | named
    marked = {a.name for a in schema.arguments if a.written and _tensors(values.get(a.name))}
    operands = tuple(_value(name, v) for name, v in zip(names, placed, strict=False))
    attributes = {name: _value(name, value) for name, value in named.items()}
    op = Op(schema.name, operands, (), attributes, frozenset(marked))
    return {tensor.name for tensor in written_by(op)}


def _value(name: str, value: Any) -> Value:
    if isinstance(value, torch.Tensor):
        return Tensor(name, "f32", tuple(value.shape), name)
    if isinstance(value, list):
        return tuple(_value(name, item) for item in value)
    return str(value) if isinstance(value, torch.dtype) else value


def calls(first: int) -> Iterator[dict[str, Any]]:
    """Call every chosen overload from one on in several ways, and yield what each call did."""
    for number, schema in enumerate(chosen()[first:], first):
        yield {"op": number}
        for shape, flag, drop in itertools.product(SHAPES, (True, False), (False, True)):
            arguments = _arguments(schema, shape, flag, drop)
            found = None if arguments is None else changed(schema, *arguments)
            if arguments is not None and found is not None:
                told = said(schema, *arguments)
                name = f"{schema.name}.{schema.overload}".removesuffix(".")
                yield {"name": name, "changed": sorted(found), "said": sorted(told), "flag": flag}


def all_calls() -> Iterator[dict[str, Any]]:
    """Yield what every call did; each crash of an op costs that op's further calls."""
    first = 0
    while True:
        command = [sys.executable, "-m", "tests.ir.calling", str(first)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        yield from (one for one in told if "name" in one)
        if run.returncode == 0:
            return
        crashed = max((one["op"] for one in told if "op" in one), default=-1)
        if crashed < first:
            raise RuntimeError(run.stderr)
        first = crashed + 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for told in calls(int(sys.argv[1])):
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
