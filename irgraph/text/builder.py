"""Builder of graphs from the texts that the readers of ``model.ir`` extract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from irgraph.diagnostics import suggestion
from irgraph.ir.dim import Term, make
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import FORMAT, Declared, Device, Graph, Stream
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DeviceRef, DType, Tensor, row_major


class BuildError(ValueError):
    """Raised for a text without a valid meaning.

    ``word`` is the part of the text to point at; ``is_duplicate`` is set if the word is defined
    earlier in the text; ``hint`` is the remedy.
    """

    def __init__(
        self, message: str, word: str = "", *, is_duplicate: bool = False, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.word = word
        self.is_duplicate = is_duplicate
        self.hint = hint


MAX_INTEGER = 2**63 - 1
"""Largest size, offset or literal: torch uses 64-bit integers."""

MAX_DEPTH = 100
"""Maximum number of levels of nested ops."""

_TERM = re.compile(r"\s*([+-]?)\s*(\w+(?:\s*\*\s*\w+)*)")
_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|inf|nan)")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "none": None}


@dataclass(slots=True)
class Builder:
    """The state of one reading: dimensions, devices, and every name defined so far."""

    source: str = ""
    name: str = ""
    dims: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Value] = field(default_factory=dict)
    schemas: list[str] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    declared: list[Declared] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = field(default_factory=dict)
    returned: tuple[Tensor, ...] | None = None

    def size(self, text: str) -> int:
        """Return the value of ``2048``, ``-1`` or ``26*B+1``, and cache it."""
        value = self.sizes.get(text)
        if value is None:
            value = self.sizes[text] = self._parse_size(text)
        return value

    def _parse_size(self, text: str) -> int:
        if not text:
            raise BuildError("a size is missing")
        terms: list[Term] = []
        position = 0
        while position < len(text):
            match = _TERM.match(text, position)
            if match is None:
                raise BuildError(f"not a size: {text!r}", text)
            terms.append(_term(match[1], match[2]))
            position = match.end()
        try:
            value = make(terms, self.dims)
        except KeyError as missing:
            name = missing.args[0]
            message = f"the model has no dimension {name!r}{suggestion(name, self.dims)}"
            hint = f"its dimensions: {', '.join(self.dims) or 'none'}"
            raise BuildError(message, name, hint=hint) from None
        if abs(value) > MAX_INTEGER:
            raise BuildError(f"the size {shorten(text)} is too large", text)
        return value

    def dim(self, name: str, size: str) -> None:
        """Add one dimension of the header."""
        if name in self.dims:
            raise BuildError(f"the dimension {name} is there twice", name)
        value = self.size(size)
        if value < 1:
            raise BuildError(f"the dimension {name} must be at least 1", size)
        self.dims[name] = value

    def device(self, name: str, sheet: str) -> None:
        """Add a device that the step uses."""
        if any(device.name == name for device in self.devices):
            raise BuildError(f"the device @{name} is declared twice", f"@{name}", is_duplicate=True)
        self.devices.append(Device(name, sheet))

    def stream(self, name: str, device: str) -> None:
        """Add a stream other than the default ones."""
        if any(stream.name == name for stream in self.streams):
            raise BuildError(f"the stream {name} is declared twice", name, is_duplicate=True)
        self.streams.append(Stream(name, device))

    def literal(self, text: str) -> Value:
        """Return the value of a literal's text."""
        if text[0] == '"':
            return unquote(text)
        if text[0] == "@":
            if len(text) < 2:
                raise BuildError("a device needs a name", text)
            return DeviceRef(text[1:])
        if text in _WORDS:
            return _WORDS[text]
        if text in ITEMSIZE:
            return DType(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        return self.size(text)

    def use(self, name: str) -> Tensor:
        """Return the tensor of a name; raise ``BuildError`` if it is not yet defined."""
        tensor = self.tensors.get(name)
        if tensor is None:
            hint = suggestion(name, self.tensors)
            raise BuildError(f"%{name} is not defined at this point{hint}", f"%{name}")
        return tensor

    def tensor(self, name: str, dtype: str, shape: str, device: str, location: str) -> Tensor:
        """Define a tensor from the texts of its type; the same name again is the same tensor.

        ``shape`` is the text between the brackets; ``location`` is ``b7`` or ``b7+64``.
        """
        buffer, _, offset = location.partition("+")
        cached = self.shapes.get(shape)
        if cached is None:
            cached = self.shapes[shape] = self._parse_shape(shape)
        sizes, strides = cached
        if dtype not in ITEMSIZE:
            raise BuildError(f"unknown element type {dtype!r}{suggestion(dtype, ITEMSIZE)}", dtype)
        tensor = Tensor(
            name,
            dtype,
            sizes,
            buffer,
            strides,
            self.size(offset) if offset else 0,
            device or (self.devices[0].name if self.devices else "gpu0"),
        )
        existing = self.tensors.setdefault(name, tensor)
        if existing is not tensor and existing != tensor:
            message = f"%{name} is defined a second time, as something else"
            raise BuildError(message, f"%{name}", is_duplicate=True, hint="give one another name")
        return existing

    def _parse_shape(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        sizes, semicolon, strides = text.partition(";")
        shape = self._sizes(sizes)
        if not semicolon:
            return shape, None
        if not shape:
            raise BuildError("a scalar has no strides", strides.strip())
        steps = self._sizes(strides)
        if len(steps) != len(shape):
            message = f"{len(shape)} axes but {len(steps)} strides: give one an axis"
            raise BuildError(message, strides.strip())
        return shape, None if steps == row_major(shape) else steps

    def _sizes(self, text: str) -> tuple[int, ...]:
        return tuple(self.size(part.strip()) for part in text.split(",")) if text.strip() else ()

    def setting(self, name: str, value: Value) -> None:
        """Add one setting of the header; raise ``BuildError`` for a newer format."""
        if name in self.settings:
            raise BuildError(f"{name} is given twice", name)
        if name != "format":
            self.settings[name] = value
        elif type(value) is not int or value < 1:
            raise BuildError("the format must be a whole number of at least 1", str(value))
        elif value > FORMAT:
            message = f"format {value} of model.ir is newer than this irgraph reads ({FORMAT})"
            raise BuildError(message, str(value), hint="update irgraph")

    def declare(
        self, role: str, tensor: Tensor, label: str, value: tuple[Value, ...] | None = None
    ) -> None:
        """Add a tensor that exists before the step, with its elements if they are given."""
        self.declared.append(Declared(role, tensor, label, value))

    def set_results(self, names: Iterable[str]) -> None:
        """Set the results of the step, by their names."""
        self.returned = tuple(map(self.use, names))

    def graph(self, ops: tuple[Op, ...]) -> Graph:
        """Return the graph of everything added and of these ops."""
        return Graph(
            self.name,
            self.dims,
            self.settings,
            tuple(self.schemas),
            tuple(self.devices) or (Device("gpu0", "v100"),),
            tuple(self.streams),
            tuple(self.declared),
            ops,
            self.source,
            self.returned,
        )


def _term(sign: str, product: str) -> Term:
    coefficient = -1 if sign == "-" else 1
    names = []
    for factor in product.split("*"):
        word = factor.strip()
        if word[0].isdigit():
            coefficient *= _integer(word)
        else:
            names.append(word)
    return tuple(names), coefficient


def _integer(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        hint = "a number has no letters; a product has its '*', as in 2*B"
        raise BuildError(f"not a number: {shorten(word)!r}", word, hint=hint) from None


def unquote(text: str) -> str:
    """Return the value of a string literal."""
    inside = text[1:-1]
    if text == f'"{inside}"' and inside.isprintable() and not ("\\" in inside or '"' in inside):
        return inside
    try:
        value = str(json.loads(text))
        value.encode("utf-8")
    except json.JSONDecodeError as error:
        raise BuildError(f"not a string: {error.msg.lower()}", text) from None
    except UnicodeEncodeError:
        raise BuildError("a string with a lone surrogate (half a character)", text) from None
    return value


def shorten(text: str) -> str:
    """Return a text of at most 40 characters for messages."""
    return text if len(text) <= 40 else f"{text[:40]}…"
