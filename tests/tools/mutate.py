"""Mutation testing: change one constant, comparison or condition, and see whether a test notices.

    python -m tests.tools.mutate record [-n 2] [TESTS ...]
    python -m tests.tools.mutate run costmodels/families irgraph/verbs --count 200 --seed 0

``record`` runs the tests once and writes, to ``--map``, which test runs which line, and for how
long. ``run`` draws mutants of the files in some folders (the same seed, the same mutants), and runs
for each the tests that run the changed line, the fastest first, ``--seconds`` of them at most; for
a line that runs on import, those that run any function of the file. It prints one line a mutant and
the share that was killed, and ends with 1 where that is below ``--least`` percent. A mutant that
survives asks for a test with a reason of its own for the value, or for less code; a few are
equivalent to the original. Tests that start other processes see the unchanged code there.

Needs ``coverage``. Nothing is written to the source files: a child process compiles the mutant in
place of the module.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORD = "IRGRAPH_MUTATION_RECORD"
"""Environment variable: where the tests of ``record`` write what they ran."""

OPPOSITE = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
PRELOADED = ("numpy", "torch", "hypothesis", "msgspec", "lark", "typer", "rich.table", "scipy")
"""Slow imports that mutants share."""


@dataclass(frozen=True)
class Mutant:
    """A change of one file: bytes from ``start`` to ``end`` become ``text``."""

    path: str
    line: int
    start: int
    end: int
    before: str
    text: str

    def __str__(self) -> str:
        """Return where it is and what changed."""
        return f"{self.path}:{self.line}: {self.before} -> {self.text}"

    def source(self) -> bytes:
        """Return the text of the changed file."""
        data = (ROOT / self.path).read_bytes()
        return data[: self.start] + self.text.encode() + data[self.end :]


def mutants(path: str) -> list[Mutant]:
    """Return every mutant of a file."""
    data = (ROOT / path).read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: Any) -> tuple[int, int]:
        first, last = starts[node.lineno - 1], starts[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def change(node: Any, start: int, end: int, text: str) -> Mutant:
        return Mutant(path, node.lineno, start, end, data[start:end].decode(), text)

    def operator(left: Any, right: Any, kind: type) -> Mutant:
        old, new = OPPOSITE[kind]
        between = span(left)[1]
        start = data.index(old.encode(), between, span(right)[0])
        return change(right, start, start + len(old), new)

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield change(node, *span(node), _other(node.value))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, right, kind in zip(sides, sides[1:], node.ops, strict=False):
                yield operator(left, right, type(kind))
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield operator(left, right, type(node.op))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start = span(node)[0]
            yield change(node, start, start + len("not"), "")
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
        for test in [*tests, *getattr(node, "ifs", ())]:
            start, end = span(test)
            yield change(test, start, end, f"(not ({data[start:end].decode()}))")
        for child in _children(node):
            yield from visit(child)

    return list(visit(ast.parse(data)))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node but decorators, annotations, ``strict=`` and ``TYPE_CHECKING``."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and getattr(part, "arg", "") != "strict":
                yield part


def _other(value: float) -> str:
    """Return another number: a quarter more, one more where it is small and whole."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + max(1, value // 4))
    return repr(value * 1.25 if value else 1.0)


# recording which test runs which line, as a plugin of pytest


class Recorder:
    """Notes the lines and the duration of each test."""

    def __init__(self, path: str) -> None:
        from coverage import Coverage

        self.path = path
        self.times: dict[str, float] = {}
        self.coverage = Coverage(data_file=None, source=[str(ROOT)], omit=["*/tests/*"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Let lines count for the test that is about to run."""
        self.coverage.switch_context(item.nodeid)
        start = time.monotonic()
        result = yield
        self.times[item.nodeid] = time.monotonic() - start
        self.coverage.switch_context("")
        return result

    def pytest_unconfigure(self) -> None:
        """Write what ran."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {
            str(Path(file).relative_to(ROOT)): {
                line: [name for name in names if name]
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        text = json.dumps({"lines": lines, "times": self.times})
        Path(f"{self.path}.{os.getpid()}").write_text(text, encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record where asked to."""
    if RECORD in os.environ:
        config.pluginmanager.register(Recorder(os.environ[RECORD]))


def record(options: argparse.Namespace) -> int:
    """Run tests, and write which ran which line."""
    path = options.map.resolve()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.tools.mutate"]
    command += ["-n", str(options.n)] if options.n else []
    environment = {**os.environ, RECORD: str(path)}
    code = subprocess.run([*command, *options.tests], cwd=ROOT, env=environment).returncode
    lines: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    times: dict[str, float] = {}
    for part in path.parent.glob(f"{path.name}.*"):
        found = json.loads(part.read_text(encoding="utf-8"))
        times |= found["times"]
        for file, by_line in found["lines"].items():
            for line, names in by_line.items():
                lines[file][line] += names
        part.unlink()
    path.write_text(json.dumps({"lines": lines, "times": times}), encoding="utf-8")
    return code


# running the tests of mutants


def tests_of(mutant: Mutant, known: dict[str, Any], seconds: float) -> list[str]:
    """Return the tests to run for a mutant, the fastest first."""
    by_line: dict[str, list[str]] = known["lines"].get(mutant.path, {})
    names = set(by_line.get(str(mutant.line), ())) or set().union(*by_line.values())
    chosen, left = [], seconds
    for name in sorted(names, key=lambda name: known["times"][name]):
        left -= known["times"][name]
        if left < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def _child(mutant: Mutant, names: list[str]) -> None:
    """Run tests with a mutant in place of its module; end with 0 where all pass."""
    target, source, original = str(ROOT / mutant.path), mutant.source(), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        if str(Path(self.path).resolve()) != target:
            return original(self, fullname)
        return compile(source, target, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutant", database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutant")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    os._exit(int(pytest.main([*options, *names])))


def run(options: argparse.Namespace) -> int:
    """Draw mutants, run their tests, and print what became of them."""
    known = json.loads(options.map.read_text(encoding="utf-8"))
    files = [path for folder in options.folders for path in sorted((ROOT / folder).rglob("*.py"))]
    drawn = [m for path in files for m in mutants(str(path.relative_to(ROOT)))]
    random.Random(options.seed).shuffle(drawn)
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    context = multiprocessing.get_context("fork")
    waiting = [(m, tests_of(m, known, options.seconds)) for m in drawn[: options.count]]
    killed = sum(_killed(mutant, names, context, options.timeout) for mutant, names in waiting)
    share = 100 * killed / max(len(waiting), 1)
    print(f"{killed} of {len(waiting)} mutants killed ({share:.0f} %), of {len(drawn)}")  # noqa: T201
    return int(share < options.least)


def _killed(mutant: Mutant, names: list[str], context: Any, timeout: float) -> bool:
    code: int | None = 0
    if names:
        process = context.Process(target=_child, args=(mutant, names))
        process.start()
        process.join(timeout)
        code = process.exitcode
        if process.is_alive():
            process.kill()
            process.join()
    print("survived" if code == 0 else "killed  ", f"{len(names):4} tests ", mutant, flush=True)  # noqa: T201
    return code != 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", type=Path, default=ROOT / ".mutation-map.json")
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("record")
    first.add_argument("tests", nargs="*")
    first.add_argument("-n", type=int, default=0)
    first.set_defaults(call=record)
    second = commands.add_parser("run")
    second.add_argument("folders", nargs="+")
    for name, default in (("count", 200), ("seed", 0), ("seconds", 60), ("timeout", 600)):
        second.add_argument(f"--{name}", type=int, default=default)
    second.add_argument("--least", type=float, default=85)
    second.set_defaults(call=run)
    options = parser.parse_args()
    return int(options.call(options))


if __name__ == "__main__":
    sys.exit(main())
