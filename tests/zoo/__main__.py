"""Examines all programs of the zoo and writes docs/zoo.md: ``python -m tests.zoo [NAME …]``.

Each library's programs run in a child of their own; one that ends it is told as such.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.zoo.examine import OTHER
from tests.zoo.programs import SOURCES, programs

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"

PACKAGES = ("torch", "torchvision", "timm", "transformers")

HEAD = """\
# The model zoo

Training steps of {versions}, at small sizes with random weights, and
steps as people write them (`tests/zoo`). Each is captured on the meta device at two batch sizes,
priced, executed from the values of a real step on the CPU and compared with what that step leaves,
and resized to a batch size of {other}, which must equal a fresh capture there, op for op.
`make zoo` installs what it takes and makes this page anew.

- **unknown**: ops that no cost model knows, each priced by a floor.
- **executed**: the largest difference from torch of a parameter, a buffer, the optimizer's state or
  the loss, relative to how much the step changes it. Without dropout, whose random numbers differ
  by device, and without parameters whose gradient is nothing but rounding.
- **passes**: `python -m tests.zoo.rewritten NAME …` applies every pass of the library that needs no
  argument, and eight of them together, to a program, and executes it before and after.

| | of {count} |
|---|---|
| captured on meta | {captured} |
| no unknown op | {known} |
| executed equal to torch | {executed} |
| resized equal to a fresh capture | {resized} |

| program | ops | parameters | unknown | resized | executed |
|---|---|---|---|---|---|
"""


def main(names: list[str]) -> int:
    """Examine the named programs, or all, and write the page if it was all."""
    found = []
    for result in examined(names):
        print(line(result), flush=True)  # noqa: T201
        found.append(result)
    if not names:
        PAGE.write_text(page(found), encoding="utf-8")
    return 0


def examined(names: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what was found of each program, in order."""
    for source in SOURCES:
        left = [name for name in programs(source) if not names or name in names]
        while left:
            for result in child(left):
                left.remove(result["name"])
                yield result
            if left:
                yield {"name": left.pop(0), "captured": "it ended the process"}


def child(names: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what a process of its own finds, until it ends."""
    command = [sys.executable, "-m", "tests.zoo.examine", *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout or ():
            if text.startswith("{"):
                yield json.loads(text)


def page(found: list[Mapping[str, Any]]) -> str:
    """Return the page about what was found."""
    captured = [f for f in found if f["captured"] == "yes"]
    return HEAD.format(
        versions=", ".join(f"{name} {version(name)}" for name in PACKAGES),
        other=OTHER,
        count=len(found),
        captured=len(captured),
        known=sum(not f["unknown"] for f in captured),
        executed=sum(f["executed"] == "equal" for f in captured),
        resized=sum(f["resized"] == "equal" for f in captured),
    ) + "".join(f"{line(f)}\n" for f in found)


def line(found: Mapping[str, Any]) -> str:
    """Return a program's row."""
    name = f"`{found['name']}`"
    if found["captured"] != "yes":
        return f"| {name} | not captured: {found['captured'].replace('|', '/')} | | | | |"
    unknown = ", ".join(f"`{op}` ({n})" for op, n in found["unknown"].items()) or "none"
    executed = found["executed"].replace("|", "/")
    if executed == "equal":
        executed = f"equal ({found['difference']:.0e})"
    cells = (name, found["ops"], found["parameters"], unknown, found["resized"], executed)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
