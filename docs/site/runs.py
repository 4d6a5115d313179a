"""What pages show of real runs: blocks marked ``run`` are executed when the site is built."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).parents[2]

RUN = re.compile(r"^```(sh|python) run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MADE = re.compile(r"[\w-]+\.(?:svg|html)\b")

FRAME = '<iframe src="{0}" title="{0}" loading="lazy" width="100%" height="640"></iframe>'


def executed(text: str, folder: Path, keep: Callable[[Path], str]) -> str:
    """Return a page with what its blocks made: pictures and reports below the block.

    A block's lines run in ``folder``, which later blocks of the page share; ``keep`` takes a file
    that a block names and made, and returns the address by which the page shows it. Raises
    ``RuntimeError`` with what a block printed if it fails.
    """

    def run(block: re.Match[str]) -> str:
        kind, inside = block.groups()
        for command in _commands(kind, inside):
            _run(command, folder)
        shown = [f"```{kind}\n{inside}```"] if kind == "sh" else [_folded(inside)]
        for name in dict.fromkeys(_MADE.findall(inside)):
            address = keep(folder / name)
            if name.endswith(".svg"):
                shown.append(f"![{Path(name).stem}]({address})")
            else:
                shown.append(f"[Open {name}]({address})\n\n{FRAME.format(address)}")
        return "\n\n".join(shown)

    if not RUN.search(text):
        return text
    for name in ("examples", "costmodels"):
        (folder / name).symlink_to(ROOT / name)
    return RUN.sub(run, text)


def _folded(program: str) -> str:
    """Return a program as a block that opens by a click."""
    block = f"```python\n{program}```"
    return '??? example "The program that draws this"\n\n' + indent(block, "    ")


def _commands(kind: str, inside: str) -> list[list[str]]:
    """Return the command lines of a block: each of its lines, or one program."""
    if kind == "python":
        return [[sys.executable, "-c", inside]]
    lines = (shlex.split(line, comments=True) for line in inside.splitlines())
    return [[sys.executable, "-m", *line] for line in lines if line]


def _run(command: list[str], folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{shlex.join(command[1:])}\n{ran.stdout}{ran.stderr}")
