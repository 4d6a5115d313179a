"""Mutation testing: change one constant, comparison or condition, and see whether a test notices.

    python -m tests.tools.mutate record [--static] [PYTEST OPTIONS AND TESTS ...]
    python -m tests.tools.mutate run --seed 0 --skip 0 --count 200 costmodels/families irgraph/verbs

``record`` notes which test runs which line, and for how long. ``run`` draws mutants of the files in
some folders (same seed, same mutants) and runs for each the tests that run the changed line, the
fastest first, ``--seconds`` of them at most; for code that runs once, on import or in a cached
function, those that run any line of the file, or whose own file names the constant. ``--static``
notes times alone, which takes no longer than the tests: then those run first whose file imports the
changed module or bears its name, next those of the folder that mirrors its own, then those that
name what it defines. It works on a copy of the repository, so that processes which tests start see
the mutant too. A mutant is killed where a test fails that passes without it, or where tests take
far more processor time than they need, which no load on the machine causes. Kept tools leave
constants outside of functions alone, or start Python and torch anew for each mutant. Needs
``pytest-cov``.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PRELOADED = ("numpy", "torch", "hypothesis", "msgspec", "lark", "typer", "rich.table", "scipy")
"""Slow imports that mutants share."""
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NEAREST = 12
"""Files of tests that run for a mutant at most where no recording says which lines they run."""
FUNCTIONS = (ast.FunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Mutant:
    """A changed file. ``lines`` run the change, or ``around`` it; none where it runs on import.

    ``name`` is then what a test file calls the constant, in small letters.
    """

    path: str
    change: str
    source: str
    lines: range
    around: range
    name: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    tree = ast.parse(path.read_bytes())
    file = str(path.relative_to(ROOT))
    names = {node: _name(top) for top in tree.body for node in ast.walk(top)}
    for node, attribute, value, function in _changes(tree, None):
        old = getattr(node, attribute)
        place = {"test": [old], "ifs": old}.get(attribute, [node])[0]
        before = ast.unparse(place)
        setattr(node, attribute, value)
        after = f"not {before}" if place is not node else ast.unparse(node)
        change = f"{file}:{place.lineno}: {before:.90} -> {after:.90}"
        around = _lines(function) if function else range(0)
        lines = _lines(place) if function else around
        yield Mutant(file, change, ast.unparse(tree), lines, around, names[place])
        setattr(node, attribute, old)


def _name(statement: ast.stmt) -> str:
    """Return what a statement of a module defines, in small letters."""
    words = getattr(statement, "name", "") or ast.unparse(statement)
    return str(words).split()[0].strip(":,").lower()


def _lines(node: Any) -> range:
    return range(node.lineno, node.end_lineno + 1)


def _changes(node: Any, function: ast.AST | None) -> Iterator[tuple[Any, str, Any, ast.AST | None]]:
    """Yield nodes with an attribute, its other value, and the function that they are in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield node, "value", _other(node.value), function
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield node, "ops", [*node.ops[:i], OTHER[type(op)](), *node.ops[i + 1 :]], function
    elif isinstance(node, ast.BoolOp):
        yield node, "op", OTHER[type(node.op)](), function
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not _compares(node.test):
        yield node, "test", ast.UnaryOp(ast.Not(), node.test), function
    elif isinstance(node, ast.comprehension) and node.ifs and not _compares(node.ifs[0]):
        yield node, "ifs", [ast.UnaryOp(ast.Not(), node.ifs[0]), *node.ifs[1:]], function
    once = any("cache" in ast.unparse(d) for d in getattr(node, "decorator_list", ()))
    for name, value in ast.iter_fields(node):
        inner = node if name == "body" and isinstance(node, FUNCTIONS) and not once else function
        for part in value if isinstance(value, list) else [value]:
            unwanted = name in ("decorator_list", "annotation", "returns")
            if isinstance(part, ast.AST) and not unwanted and getattr(part, "arg", "") != "strict":
                yield from _changes(part, inner)


def _compares(condition: ast.expr) -> bool:
    """Return whether a condition is a comparison, which has a mutant of its own."""
    return isinstance(condition, ast.Compare) and len(condition.ops) == 1


def _other(value: float) -> float:
    """Return another number: a quarter more, one more where it is small and whole."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + max(1, value // 4)
    return value * 1.25 or 1.0


@dataclass(eq=False)
class Outcome:
    """A plugin of pytest: how long tests take that pass, and which failed."""

    times: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test."""
        self.times[report.nodeid] = self.times.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def record(options: argparse.Namespace) -> int:
    """Run tests, and write which ran which line."""
    options.map.mkdir(exist_ok=True)
    os.environ["COVERAGE_FILE"] = str(options.map / "coverage")
    outcome = Outcome()
    cover = ["--cov=irgraph", "--cov=costmodels", "--cov-context=test", "--cov-report="]
    if options.static:
        (options.map / "coverage").unlink(missing_ok=True)
        cover = []
    code = pytest.main([*cover, *options.tests], plugins=[outcome])
    times = options.map / "times.json"
    known = json.loads(times.read_text("utf-8")) if "--cov-append" in options.tests else {}
    known |= {name: s for name, s in outcome.times.items() if name not in outcome.failed}
    times.write_text(json.dumps(known), encoding="utf-8")
    return int(code)


class Laboratory:
    """A copy of the repository, and the tests that are known."""

    def __init__(self, record: Path, copy: Path) -> None:
        from coverage import CoverageData

        self.copy, self.sound = copy, set[str]()
        self.times: dict[str, float] = json.loads((record / "times.json").read_text("utf-8"))
        self.coverage = CoverageData(str(record / "coverage"))
        self.static = not (record / "coverage").exists()
        if self.static:
            for test, seconds in list(self.times.items()):
                file = test.partition("::")[0]
                self.times[file] = self.times.get(file, 0.0) + seconds
        self.coverage.read()
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(ROOT, copy, dirs_exist_ok=True, ignore=ignored)
        # told from the text, not from the second at which it was written
        compileall.compile_dir(copy, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        os.chdir(copy)
        os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(copy)]
        for name in PRELOADED:
            with suppress(ImportError):
                import_module(name)

    def tests_of(self, mutant: Mutant, seconds: float) -> list[str]:
        """Return the tests to run for a mutant, or whole files of them, the fastest first."""
        if self.static:
            near = self._near(Path(mutant.path))
            chosen = sorted(near, key=lambda name: (near[name], self.times[name]))[:NEAREST]
        else:
            contexts = self.coverage.contexts_by_lineno(str(ROOT / mutant.path))
            known = self._run_by(contexts, mutant.lines) or self._run_by(contexts, mutant.around)
            names = known or self._run_by(contexts, contexts) | self._naming(mutant.name)
            chosen = sorted(names, key=lambda name: self.times[name])
        ends = [sum(self.times[name] for name in chosen[: i + 1]) for i in range(len(chosen))]
        fitting = [name for name, end in zip(chosen, ends, strict=True) if end <= seconds]
        return fitting or chosen[:1]

    def _near(self, path: Path) -> dict[str, int]:
        """Return files of tests by how much they have to do with a file: 0 the most."""
        module = ".".join(path.with_suffix("").parts)
        mirror = Path("tests", *path.parent.parts[path.parts[0] == "irgraph" :])
        mirror = next(f for f in (mirror, *mirror.parents) if (self.copy / f).is_dir())
        body = ast.parse((self.copy / path).read_bytes()).body
        defined = {name for node in body if len(name := getattr(node, "name", "").strip("_")) > 5}
        found: dict[str, int] = {}
        for file in (name for name in self.times if "::" not in name):
            text = (self.copy / file).read_text("utf-8")
            if f"{module} " in text or f"_{path.stem}" in Path(file).stem:
                found[file] = 0
            elif Path(file).is_relative_to(mirror):
                found[file] = 1
            elif any(name in text for name in defined):
                found[file] = 2
        return found

    def _run_by(self, contexts: dict[int, list[str]], lines: Iterable[int]) -> set[str]:
        names = {name.partition("|")[0] for line in lines for name in contexts.get(line, ())}
        return names & self.times.keys()

    def _naming(self, name: str) -> set[str]:
        files = {test.partition("::")[0] for test in self.times}
        found = {file for file in files if name in (self.copy / file).read_text("utf-8").lower()}
        return {test for test in self.times if test.partition("::")[0] in found}

    def killer(self, mutant: Mutant, names: list[str]) -> str | None:
        """Return the test that fails because of a mutant."""
        path = self.copy / mutant.path
        original = path.read_bytes()
        while names:
            path.write_text(mutant.source, encoding="utf-8")
            culprit = self._failing(names)
            path.write_bytes(original)
            if culprit is None or culprit in self.sound:
                return culprit
            alone = self._failing([culprit] if culprit in self.times else names)
            if alone is None:
                self.sound |= {culprit} & self.times.keys()
                return culprit
            names = [name for name in names if name != alone and alone in self.times]
        return None

    def _failing(self, names: list[str]) -> str | None:
        """Run tests in a child process, and return the first that fails."""
        limit = 30 + int(3 * sum(self.times[name] for name in names))
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(names, limit, theirs))
        process.start()
        theirs.close()
        process.join()
        with suppress(EOFError):
            return ours.recv()
        # ended by itself or by its limit; where something else ended it, nothing is known
        return None if process.exitcode == -signal.SIGKILL else f"exit {process.exitcode}"


def _child(names: list[str], limit: int, result: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutant", database=None, deadline=None, phases=phases)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    outcome = Outcome()
    options = ["-x", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:cov"]
    options += ["--hypothesis-profile=mutant", "--hypothesis-seed=0"]
    code = pytest.main([*options, *names], plugins=[outcome])
    result.send((outcome.failed or [f"exit status {int(code)}"])[0] if code else None)
    os._exit(0)


def run(options: argparse.Namespace) -> int:
    """Draw mutants, run their tests, and print what became of them."""
    files = [path for folder in options.folders for path in sorted((ROOT / folder).rglob("*.py"))]
    drawn = [mutant for path in files for mutant in mutants(path)]
    random.Random(options.seed).shuffle(drawn)
    drawn, every = drawn[options.skip : options.skip + options.count], len(drawn)
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        laboratory = Laboratory(options.map.resolve(), Path(folder))
        for mutant in drawn:
            names = laboratory.tests_of(mutant, options.seconds)
            killer = laboratory.killer(mutant, names)
            killed += killer is not None
            by = f"by {killer}" if killer else f"of {len(names)} tests"
            print("killed  " if killer else "SURVIVED", mutant.change, by, flush=True)  # noqa: T201
    print(f"{killed} of {len(drawn)} mutants killed, of {every}")  # noqa: T201
    return int(100 * killed < options.least * len(drawn))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", type=Path, default=ROOT / ".mutation")
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("record")
    first.add_argument("--static", action="store_true")
    first.set_defaults(call=record)
    second = commands.add_parser("run")
    second.add_argument("folders", nargs="+")
    for name, default in (("count", 200), ("skip", 0), ("seed", 0), ("seconds", 60), ("least", 85)):
        second.add_argument(f"--{name}", type=int, default=default)
    second.set_defaults(call=run)
    options, tests = parser.parse_known_args()
    options.tests = tests
    return int(options.call(options))


if __name__ == "__main__":
    sys.exit(main())
