"""The variants of a sweep: every combination of sizes, hosts and devices, in a fixed order."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from irgraph.diagnostics import fail

MAX_VARIANTS = 10**10
"""Maximum number of variants of a sweep."""

MAX_DIGITS = 18
"""Maximum number of digits of a size, so that it fits into 64 bits."""


class Chunk(Struct, frozen=True):
    """Consecutive combinations of sizes on one host, and all devices.

    Attributes:
        number: of the chunk, from 0.
        host: name or path of the host.
        first, end: indices of its combinations of sizes, the end excluded.
    """

    number: int
    host: str
    first: int
    end: int


class Grid(Struct, frozen=True):
    """Grid of the variants of a sweep.

    Attributes:
        dims: sizes of each dimension.
        devices, hosts: names or paths.
        mode, software, accounting: as ``PredictOptions`` has them.
        weights: files or records of measured calls, or trained models.
        chunk: approximate number of variants of a chunk.
    """

    dims: Mapping[str, tuple[int, ...]]
    devices: tuple[str, ...]
    hosts: tuple[str, ...] = ("default",)
    mode: str = "corrected"
    software: str = "torch-2"
    accounting: str = "blocking"
    weights: tuple[str, ...] = ()
    chunk: int = 4000

    @property
    def combinations(self) -> int:
        """Number of combinations of sizes."""
        return math.prod(map(len, self.dims.values()))

    @property
    def variants(self) -> int:
        """Number of variants."""
        return self.combinations * len(self.devices) * len(self.hosts)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks: host by host, in each the sizes in the order of ``sizes``."""
        width = max(1, self.chunk // len(self.devices))
        number = 0
        for host in self.hosts:
            for first in range(0, self.combinations, width):
                yield Chunk(number, host, first, min(first + width, self.combinations))
                number += 1

    def sizes(self, chunk: Chunk) -> list[dict[str, int]]:
        """Return the combinations of sizes of a chunk; the last dimension varies fastest."""
        return [self._sizes_at(index) for index in range(chunk.first, chunk.end)]

    def _sizes_at(self, index: int) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name in reversed(tuple(self.dims)):
            index, size_index = divmod(index, len(self.dims[name]))
            sizes[name] = self.dims[name][size_index]
        return {name: sizes[name] for name in self.dims}

    def fingerprint(self, model: str, version: str) -> str:
        """Return the SHA-256 of everything that the figures depend on: 64 hexadecimal digits.

        Args:
            model: the text of the model.
            version: of irgraph, which identifies its shipped cost models and tables.
        """
        files = {name: file_digest(name) for name in (*self.devices, *self.hosts, *self.weights)}
        inputs: dict[str, Any] = {
            **asdict(self),
            "model": model,
            "version": version,
            "files": files,
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def file_digest(name: str) -> str:
    """Return the SHA-256 of a file's content, ``""`` if there is no such file."""
    path = Path(name)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def parse_dims(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse options of sizes: ``B=64,128``, ``B=64:4096:64`` (the end included).

    Raises ``IrgraphError`` (exit code 2) if one is neither a list nor a range of sizes.
    """
    sizes_by_dim: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if name in sizes_by_dim:
            raise fail(f"--dim {name}: given twice", exit_code=2)
        if not (name and sign):
            raise fail(f"--dim: give NAME=SIZES, not {text!r}", exit_code=2)
        sizes = [size for part in values.split(",") for size in _range(name, part)]
        if len(set(sizes)) < len(sizes):
            raise fail(f"--dim {name}: a size is given twice", exit_code=2)
        sizes_by_dim[name] = tuple(sizes)
    return sizes_by_dim


def _range(name: str, text: str) -> range:
    parts = text.split(":")
    if not (1 <= len(parts) <= 3 and all(p.isdecimal() and len(p) <= MAX_DIGITS for p in parts)):
        message = f"--dim {name}: give sizes such as 64,128 or 64:4096:64, not {text!r}"
        raise fail(message, exit_code=2)
    numbers = [int(part) for part in parts]
    first, last = numbers[0], numbers[min(1, len(numbers) - 1)]
    step = numbers[2] if len(numbers) == 3 else 1
    if not (1 <= first <= last and step >= 1 and (last - first) // step < MAX_VARIANTS):
        message = f"--dim {name}: a range goes up from at least 1, in steps of at least 1: {text!r}"
        raise fail(message, exit_code=2)
    return range(first, last + 1, step)
