"""Runs a graph with torch on the CPU, by a reading of its own of what the text means.

It shares the graph's classes with irgraph and nothing else: schemas come from torch, bytes from
real storages, order from streams and events.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import DeviceRef, DType, Tensor
from tests.differential.memory import Memory, UnsupportedError, drawn
from tests.differential.orders import computes, in_random_order
from tests.differential.own import OWN

Torch = Any
UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
KEPT = ("embedding_bag", "batch_norm")
"""Ops whose further results are for their own backward; their sizes differ by device."""

COPYING = ("to", "_to_copy", "copy_", "cpu", "contiguous")


CAST = re.compile(r"_(bf16|f16|f32|f64)(_\d+)?$")
"""What ``cast`` adds to a name; a random op draws the same in another type."""


class WrongError(Exception):
    """Torch does not do what the graph says; the message names the op."""


class Interpreter:
    """One run of a graph.

    Attributes:
        memory: the bytes of all buffers.
        initial: the values of declared tensors before the step, and of memory that none fills.
        unsaid: operands that an op changed although the graph does not say so: (op, tensor).
    """

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, torch.Tensor] | None = None,
        *,
        wide: bool = True,
        seed: int = 0,
        chance: Random | None = None,
    ) -> None:
        self.graph, self.seed = graph, seed
        self.memory = Memory(graph, wide)
        self.initial: dict[str, torch.Tensor] = {}
        self.unsaid: list[tuple[Op, Tensor]] = []
        self._given = values or {}
        self._kept: dict[str, torch.Tensor] = {}
        leaves = [leaf for leaf in graph.leaves() if computes(leaf)]
        self._calls = {leaf: _call_of(leaf) for leaf in leaves}
        self._leaves = in_random_order(graph, chance) if chance else leaves
        for declared in graph.tensors:
            self._fill(declared.tensor, declared.role)

    def run(self) -> Interpreter:
        """Run every op, and return this."""
        usual = torch.get_default_dtype()
        torch.set_default_dtype(self.memory.dtype("f32"))  # of what integers and numbers make
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for leaf in self._leaves:
                    self._step(leaf)
        finally:
            torch.set_default_dtype(usual)
        return self

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the present value of a tensor, by its name."""
        return self.memory.view(self.graph.by_name[name])

    def _fill(self, tensor: Tensor, role: str) -> None:
        view = self.memory.view(tensor)
        given = self._given.get(tensor.name)
        view.copy_(drawn(tensor.name, view, role, self.seed) if given is None else given)
        self.initial[tensor.name] = view.clone()

    def _step(self, op: Op) -> None:
        if op.name.startswith("sync."):
            return
        call = self._calls[op]
        held = [(t, self._view(t)) for t in op.inputs if t.name not in self._kept]
        kept = [(t, v, v.clone()) for t, v in held if t.name not in op.written]
        names = [t.name for t in op.outputs] or sorted(op.written)
        plain = [CAST.sub("", name) for name in names]
        torch.manual_seed(zlib.crc32(f"{self.seed} {plain}".encode()))
        try:
            made = call(self._value)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
            raise WrongError(f"{op.name} of {op.origin}: {error}") from error
        written = [v for t, v in held if t.name in op.written]
        for tensor, view, before in kept:
            if not _same_bits(view, before) and not any(_touch(view, w) for w in written):
                self.unsaid.append((op, tensor))
        self._results(op, made, [view for _, view in held])

    def _view(self, tensor: Tensor) -> torch.Tensor:
        if tensor.name in self._kept:
            return self._kept[tensor.name]
        self.memory.allocate(tensor.buffer)
        return self.memory.view(tensor)

    def _value(self, value: Value) -> Torch:
        if isinstance(value, Tensor):
            return self._view(value)
        if isinstance(value, tuple):
            return [self._value(item) for item in value]
        if isinstance(value, DType):
            return self.memory.dtype(value)
        if isinstance(value, DeviceRef):
            return torch.device("cpu")
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def _results(self, op: Op, made: Sequence[Torch], held: Sequence[torch.Tensor]) -> None:
        if len(made) < len(op.results):
            raise WrongError(f"{op.name} gave {len(made)} results, not {len(op.results)}")
        fresh = (v for v in made if isinstance(v, torch.Tensor))
        if not op.results and any(_storage(v) not in map(_storage, held) for v in fresh):
            raise WrongError(f"{op.name} makes something that the graph does not name")
        for place, (result, value) in enumerate(zip(op.results, made, strict=False)):
            internal = place > 0 and any(word in op.name for word in KEPT)
            internal = internal or any(t.name in self._kept for t in op.inputs)
            for tensor, one in _paired(op, result, value) if value is not None else ():
                self._bind(op, tensor, one, held, internal)

    def _bind(
        self,
        op: Op,
        tensor: Tensor,
        value: torch.Tensor,
        held: Sequence[torch.Tensor],
        internal: bool,
    ) -> None:
        """Keep a result where the graph says, after it was held against what the graph says."""
        fresh = tensor.buffer not in {t.buffer for t in op.inputs}
        self.memory.allocate(tensor.buffer)
        view = self.memory.view(tensor)
        if value.shape != view.shape or value.dtype != view.dtype:
            if internal:
                self._kept[tensor.name] = value
                return
            said = f"{view.dtype}{list(view.shape)}"
            raise WrongError(
                f"{op.name}: %{tensor.name} is {value.dtype}{list(value.shape)}, not {said}"
            )
        shared = bool(value.numel()) and _storage(value) in map(_storage, held)
        if shared and fresh and op.name.rpartition(".")[2] not in COPYING:
            raise WrongError(f"{op.name}: %{tensor.name} lies in an operand, the graph says apart")
        if not fresh:
            if not _same_bits(view, value):
                raise WrongError(f"{op.name}: %{tensor.name} is not what lies in ${tensor.buffer}")
            if value.numel() and not shared:
                raise WrongError(f"{op.name}: %{tensor.name} is a copy, the graph says a view")
        elif op.name.rpartition(".")[2] in UNFILLED:
            self._fill(tensor, "input")
        else:
            view.copy_(value)


def _paired(op: Op, result: Result, value: Torch) -> Iterator[tuple[Tensor, torch.Tensor]]:
    if isinstance(result, Tensor):
        yield result, value
    elif isinstance(result, tuple):
        if len(result) != len(value):
            raise WrongError(f"{op.name} gave {len(value)} tensors in a list, not {len(result)}")
        yield from zip(result, value, strict=True)


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _touch(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _storage(a) == _storage(b)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    one, other = (value.flatten().clone(memory_format=torch.contiguous_format) for value in (a, b))
    one, other = (value.view(torch.uint8) if value.numel() else value for value in (one, other))
    return torch.equal(one, other)


Call = Callable[[Callable[[Value], Torch]], Sequence[Torch]]
"""Computes an op, given what turns the graph's values into torch's; returns what is new."""


def _call_of(op: Op) -> Call:
    """Return how torch computes an op: by its own schemas, or as we say of our own ops."""
    if op.name.startswith("sync."):
        return lambda _: ()
    if op.name.startswith("autograd."):
        raise UnsupportedError(f"{op.name} does not say what it did")
    if op.name.startswith("irgraph."):
        return _own(op)
    library, _, base = op.name.partition(".")
    if library == "c10d":
        return _collective(op)
    packet = getattr(getattr(torch.ops, library), base, None)
    schemas = torch._C._jit_get_schemas_for_operator(f"{library}::{base}") if packet else []
    fitting = [schema for schema in schemas if _fits(schema, op)]
    if packet is None or not fitting:
        raise UnsupportedError(f"torch has no {op.name} that takes these operands")
    fitting.sort(key=lambda schema: any(a.is_out for a in schema.arguments))
    schema = fitting[0]
    overload = getattr(packet, schema.overload_name or "default")

    def call(value: Callable[[Value], Torch]) -> Sequence[Torch]:
        given = _bound(schema, op)
        named = {name: _literal(name, value(item)) for name, item in given.items()}
        returned = _called(overload, schema, named)
        values = [returned] if len(schema.returns) == 1 else list(returned or ())
        pairs = zip(values, schema.returns, strict=True)
        return [
            v
            for v, said in pairs
            if not (said.alias_info and said.alias_info.is_write)
            and isinstance(v, (torch.Tensor, list, type(None)))
        ]

    return call


def _called(overload: Torch, schema: Torch, named: dict[str, Torch]) -> Torch:
    """Call with arguments by place as far as they go, the rest by name."""
    places = []
    for argument in schema.arguments:
        if argument.kwarg_only or argument.name not in named:
            break
        places.append(named.pop(argument.name))
    return overload(*places, **named)


def _bound(schema: Torch, op: Op) -> dict[str, Value]:
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, op.operands, strict=False)), **op.attributes}


def _fits(schema: Torch, op: Op) -> bool:
    """Tell whether a schema of torch's takes an op, and writes just what the op says."""
    arguments = {argument.name: argument for argument in schema.arguments}
    given = _bound(schema, op)
    if len(op.operands) > len(arguments) or not given.keys() <= arguments.keys():
        return False
    written = set()
    for name, argument in arguments.items():
        if name not in given:
            if not argument.has_default_value():
                return False
            continue
        if not _takes(str(argument.type), given[name]):
            return False
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {t.name for t in _tensors(given[name])}
    return written == set(op.written)


def _takes(kind: str, value: Value) -> bool:
    if value is None:
        return kind.startswith("Optional") or "Tensor" in kind
    if "Tensor" in kind:
        items = value if isinstance(value, tuple) else (value,)
        return isinstance(value, tuple) == ("List" in kind) and all(
            item is None or isinstance(item, Tensor) for item in items
        )
    plain = not any(True for _ in _tensors(value))
    return plain and ("List" in kind or not isinstance(value, tuple))


def _tensors(value: Value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _literal(name: str, value: Torch) -> Torch:
    if name == "pin_memory":
        return False
    if name in ("memory_format", "layout") and isinstance(value, str):
        return getattr(torch, value)
    return value


def _own(op: Op) -> Call:
    if op.name not in OWN:
        raise UnsupportedError(f"nothing says what {op.name} means")

    def call(value: Callable[[Value], Torch]) -> Sequence[Torch]:
        named = {name: value(item) for name, item in op.attributes.items()}
        made = OWN[op.name](*map(value, op.operands), **named)
        return list(made) if isinstance(made, tuple) else [made]

    return call


def _collective(op: Op) -> Call:
    """Act as if two processes held the same values."""
    if op.name != "c10d.allreduce_":
        raise UnsupportedError(op.name)

    def call(value: Callable[[Value], Torch]) -> Sequence[Torch]:
        average = "avg" in str(op.attributes.get("reduce_op", "")).lower()
        for tensor in value(op.operands[0]):
            tensor.mul_(1 if average else 2)
        return ()

    return call
