"""Whether all ways to install irgraph give the same: ``python -m tests.tools.installs [PYTHON …]``.

A wheel and a source distribution are made and installed in empty environments under
``build/installs``, with the oldest versions that ``pyproject.toml`` allows and with the newest that
pip finds, by each interpreter (``python3.11``, ``python3.12``, ``python3.13``). In each run the
commands that the fuzzing knows, on its sound files of all formats that need no extra; exit codes,
output and messages must be equal everywhere.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cli.fuzz.seeds import FORMATS

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "installs"
PYTHONS = ("python3.11", "python3.12", "python3.13")
EXTRAS = ("ONNX", "exported program")
"""Formats that are read, or whose sound files are made, with torch."""

_PLACE = re.compile(r"python3\.\d+/site-packages")
_TIMES = re.compile(r"\d+\.\d(?= │)| +|[━─]+")
"""Milliseconds, the only decimals that end a cell of ``--stats``, and what their width changes."""

DRIVER = """
import contextlib, io, json, sys
from irgraph.cli.main import main
found = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    found.append([arguments, code, out.getvalue(), err.getvalue()])
json.dump(found, sys.stdout, ensure_ascii=False)
"""


def run(*command: str | Path, text: str = "", cwd: Path = ROOT) -> str:
    """Run a command and return its output."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, input=text, cwd=cwd, check=True, text=True, stdout=subprocess.PIPE, env=clean
    )
    return done.stdout


def commands() -> list[list[str]]:
    """Return the command lines to compare."""
    listed = [["--version"], ["--help"], ["passes"], ["devices"], ["hosts"], ["show", "absent.ir"]]
    for kind, one_format in FORMATS.items():
        if kind not in EXTRAS:
            listed += [
                [one_format.file if word == "@" else word for word in command]
                for command in one_format.commands
            ]
    return listed


def built(python: str) -> list[Path]:
    """Make the wheel and the source distribution."""
    run(python, "-m", "venv", "--clear", PLACE / "builder")
    builder = PLACE / "builder/bin/python"
    run(builder, "-m", "pip", "install", "--quiet", "build")
    shutil.rmtree(PLACE / "dist", ignore_errors=True)
    run(builder, "-m", "build", "--outdir", PLACE / "dist", ROOT)
    return sorted((PLACE / "dist").iterdir())


def answers(python: str, package: Path, oldest: bool) -> tuple[str, list[Any]]:
    """Install a package in an empty environment; return its versions and what its commands say."""
    place = PLACE / "environment"
    run(python, "-m", "venv", "--clear", place)
    pins = ["--constraint", str(ROOT / "constraints-oldest.txt")] if oldest else []
    inner = place / "bin/python"
    run(inner, "-m", "pip", "install", "--quiet", "--only-binary", "numpy", *pins, package)
    versions = run(inner, "-m", "pip", "freeze", "--exclude", "irgraph").split()
    files = PLACE / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True)
    for kind, one_format in FORMATS.items():
        if kind not in EXTRAS:
            one_format.write(files / one_format.file)
    said = run(inner, "-I", "-c", DRIVER, text=json.dumps(commands()), cwd=files)
    return " ".join(versions), list(map(comparable, json.loads(said)))


def comparable(answer: list[Any]) -> list[Any]:
    """Return what a command said without what is this environment's own, or this run's.

    The folder of packages names the interpreter, and ``--stats`` shows milliseconds.
    """
    own = _TIMES if "--stats" in answer[0] else _PLACE
    return [own.sub("", part) if isinstance(part, str) else part for part in answer]


def main(pythons: Sequence[str]) -> str:
    """Compare all ways and return what differs, nothing if all agree."""
    PLACE.mkdir(parents=True, exist_ok=True)
    first: list[Any] = []
    differing: list[str] = []
    for package, python, oldest in itertools.product(built(pythons[0]), pythons, (True, False)):
        versions, found = answers(python, package, oldest)
        first = first or found
        wrong = [f"{b}\nat first: {a}" for a, b in zip(first, found, strict=True) if a != b]
        way = f"{package.suffix} {python} {'oldest' if oldest else 'newest'}"
        sys.stdout.write(f"{way}: {len(found)} commands, {len(wrong)} differ ({versions})\n")
        sys.stdout.flush()
        differing += [f"{way}: {text}" for text in wrong]
    return "\n".join(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PYTHONS) or 0)
