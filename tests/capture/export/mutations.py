"""Mutated programs: ``python -m tests.capture.export.mutations COUNT [SEED]``.

Each archive has the JSON of a valid program with one to three changes: parts removed, repeated,
exchanged or replaced by odd values, and names replaced by code. ``irgraph lower`` may lower it or
refuse it, and must neither run the code nor fail with an internal error.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MARK = "payload-ran"
CALL = f"__import__('pathlib').Path('{MARK}').touch()"
CODES = (
    CALL, f"x={CALL}", f"x:{CALL}", f"x=({CALL})", f"x, y={CALL}", f"x\n{CALL}", f"x;{CALL}",
    f"x'+str({CALL})+'", f'x"+str({CALL})+"', f"x')or {CALL}#", f'a.b")or {CALL}#',
    f"x) -> ({CALL}", f"torch.ops.aten.add.Tensor({CALL})", f"*{CALL}", f"\\\n{CALL}",
)  # fmt: skip
"""Texts that would run if a name reached the source of a function."""

ODD: tuple[Any, ...] = (
    None, True, "", 0, -1, 1 << 31, 1 << 63, -(1 << 63), 1e308, [], {}, [[]], {"as_int": -5},
    {"as_none": True}, {"as_string": "x"}, "lambda", "self", "x" * 300, "__class__", "é",
)  # fmt: skip

Spot = tuple[Any, Any]
"""A container of the JSON, and a key or an index in it."""


def spots(value: Any) -> Iterator[Spot]:
    """Yield every place of a JSON value."""
    keys = range(len(value)) if isinstance(value, list) else list(value)
    for key in keys:
        yield value, key
        if isinstance(value[key], (list, dict)):
            yield from spots(value[key])


def _mutate(program: Any, draw: random.Random) -> None:
    """Change one place of a program."""
    places = list(spots(program))
    where, key = draw.choice(places)
    texts = [spot for spot in places if isinstance(spot[0][spot[1]], str)]
    kind = draw.randrange(7)
    if kind == 0:
        del where[key]
    elif kind == 1:
        where[key] = draw.choice(ODD)
    elif kind == 2 and isinstance(where, list):
        where.insert(key, where[draw.randrange(len(where))])
    elif kind == 3 and isinstance(where, dict):
        where[draw.choice(CODES)] = where.pop(key)
    elif kind == 4:
        other, place = draw.choice(places)
        where[key] = other[place]
    elif texts:
        holder, name = draw.choice(texts)
        rename(program, holder[name], draw.choice(CODES) if kind != 5 else "renamed")


def rename(value: Any, before: str, after: str) -> None:
    """Replace a text wherever it occurs, as a key too, so that names stay consistent."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            value[index] = after if item == before else item
            rename(value[index], before, after)
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            del value[key]
            value[after if key == before else key] = after if item == before else item
            rename(item, before, after)


def mutated(source: Path, target: Path, seed: int) -> None:
    """Write a mutated copy of an archive."""
    draw = random.Random(seed)
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (model,) = (name for name in members if name.endswith("models/model.json"))
    program = json.loads(members[model])
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        with contextlib.suppress(KeyError, IndexError):  # of a place that a change removed
            _mutate(program, draw)
    try:
        members[model] = json.dumps(program).encode()
    except (ValueError, RecursionError):  # a part in itself
        members[model] = b"[" * 5000
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def program(path: Path) -> None:
    """Write the program that is mutated: names of all kinds, a free size, a keyword."""
    import torch

    class Small(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: Any, factor: float = 2.0, *, gate: Any) -> Any:
            flat = x.reshape(x.shape[0] * x.shape[1], 8)
            first, second = torch.split(self.layer(flat) * self.scale * factor, 2, 1)
            return {"y": torch.nn.functional.gelu(first, approximate="tanh") + second * gate}

    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "factor": None, "gate": None}
    arguments = (torch.randn(4, 3, 8), 2.0)
    keywords = {"gate": torch.ones(2)}
    exported = torch.export.export(Small(), arguments, keywords, dynamic_shapes=shapes)
    torch.export.save(exported, path)


def outcomes(seeds: Sequence[int], folder: Path, report: Callable[[str], object]) -> Counter[int]:
    """Lower a mutated program for each seed, in a folder; return the number of each exit code."""
    from irgraph.cli.main import main

    source, target = folder / "program.pt2", folder / "mutated.pt2"
    program(source)
    codes: Counter[int] = Counter()
    for seed in seeds:
        mutated(source, target, seed)
        output = io.StringIO()
        with (
            contextlib.chdir(folder), contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):  # fmt: skip
            code = main(["lower", target.name, "-o", "out.ir"])
        codes[code] += 1
        if (folder / MARK).exists():
            report(f"seed {seed} ran code")
            (folder / MARK).unlink()
        if code not in (0, 4):
            report(f"seed {seed} ended in {code}: {output.getvalue()[-300:]}")
    return codes


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int((*sys.argv, "0")[2])
    with tempfile.TemporaryDirectory() as name:
        write = sys.stdout.write
        codes = outcomes(range(first, first + count), Path(name), lambda line: write(f"{line}\n"))
        write(f"{dict(codes)}\n")
