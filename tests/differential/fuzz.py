"""Random programs under random scripts: what is accepted computes the same.

``python -m tests.differential.fuzz COUNT`` tries that many scripts, ten of them on each program.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch

from irgraph.capture.live import capture
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph
from tests.differential.eager import differing
from tests.differential.interpreter import Interpreter
from tests.differential.memory import UnsupportedError
from tests.differential.programs import Program, program
from tests.differential.scripts import script

SCRIPTS = 10
"""Scripts that are tried on each program."""

SELF_REPORTED = ("please report", "internal error", "defect")
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Failure:
    """What went wrong: the program's seed, the script, and one line that says how."""

    seed: int
    statements: tuple[str, ...]
    how: str

    def __str__(self) -> str:
        return f"program({self.seed}) {list(self.statements)}: {self.how}"


def captured(found: Program) -> Graph:
    """Return the graph of a program on the meta device, held against torch where it can be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = capture(found.build(device="meta")).graph
    assert parse(print_graph(graph)) == graph, "the text does not give the graph again"
    return graph


def wrong_capture(found: Program, graph: Graph) -> str:
    """Return how a captured step differs from the program, if it can be told."""
    if any(word in found.source for word in ("rand_like", "}, 0.5)", ", 0.5)")):
        return ""
    try:
        wrong = differing(found, graph)
    except LookupError:
        return ""
    return f"the capture is wrong: {wrong[0]}" if wrong else ""


def judged(graph: Graph, statements: Sequence[str], seed: int = 0) -> str:
    """Run a script and say how it went: ``refused``, ``same``, ``changed``, or what is wrong."""
    try:
        after = run(load_script("\n".join(statements)), graph).graph
    except IrgraphError as error:
        told = str(error)
        wrong = next((word for word in SELF_REPORTED if word in told), "")
        return f"wrong: it reports itself: {told.splitlines()[0]}" if wrong else "refused"
    if after is graph:
        return "same"
    findings = verify(after)
    if findings:
        return f"wrong: unsound: {findings[0].message}"
    if parse(print_graph(after)) != after:
        return "wrong: the text does not give the graph again"
    try:
        how = different(graph, after, seed)
    except UnsupportedError as error:
        how = f"it cannot be run: {error}"
    return f"wrong: {how}" if how else "changed"


def different(before: Graph, after: Graph, seed: int) -> str:
    """Return how two graphs differ when they run, in launch order and as streams let them."""
    first = Interpreter(before, seed=seed).run()
    for chance in (None, Random(seed), Random(seed + 1)):
        second = Interpreter(after, first.initial, seed=seed, chance=chance).run()
        pairs = list(zip(lasting(before), lasting(after), strict=True))
        for name, other in pairs:
            if not close(first[name], second[other]):
                return f"%{name} differs"
        if shared(first, [name for name, _ in pairs]) != shared(second, [n for _, n in pairs]):
            return "what outlives the step shares other bytes"
        streams = {leaf.stream for leaf in after.leaves()}
        if len(streams) < 2:
            break
    return ""


def lasting(graph: Graph) -> Iterator[str]:
    """Yield what a caller can see after a step."""
    yield from (declared.tensor.name for declared in graph.tensors)
    yield from (tensor.name for tensor in graph.returned or ())


def shared(run: Interpreter, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return which of some tensors have an element in common, by their places."""
    views = [run[name] for name in names]
    held = []
    for view in views:
        offsets = torch.arange(view.untyped_storage().nbytes() // view.element_size())
        taken = offsets.as_strided(view.shape, view.stride(), view.storage_offset())
        held.append((view.untyped_storage()._cdata, set(taken.flatten().tolist())))
    pairs = ((i, j) for j in range(len(held)) for i in range(j))
    return [(i, j) for i, j in pairs if held[i][0] == held[j][0] and held[i][1] & held[j][1]]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors agree up to rounding in f64."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    # what is computed in another order may differ by rounding, against the largest value
    scale = float(a.nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, TOLERANCE, TOLERANCE * (1 + scale), equal_nan=True)


def trial(seed: int, counts: Counter[str]) -> Iterator[Failure]:
    """Try some scripts on the program of a seed."""
    try:
        found = program(seed)
        graph = captured(found)
        how = wrong_capture(found, graph)
        Interpreter(graph).run()
    except UnsupportedError as error:
        counts[f"unsupported: {error}"] += 1
        return
    except Exception as error:
        yield Failure(seed, (), _told(error))
        return
    counts["programs"] += 1
    if how:
        yield Failure(seed, (), how)
    for number in range(SCRIPTS):
        statements = script(seed * SCRIPTS + number, graph)
        try:
            outcome = judged(graph, statements, seed)
        except Exception as error:
            outcome = f"wrong: {_told(error)}"
        counts[outcome.partition(":")[0]] += 1
        if outcome.startswith("wrong"):
            yield Failure(seed, tuple(statements), outcome)


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error) or type(error).__name__).splitlines()[0]
    file = where.filename.rpartition("/")[2]
    return f"{type(error).__name__}: {first[:300]} ({file}:{where.lineno})"


def fuzz(count: int, first: int = 0) -> tuple[Counter[str], list[Failure]]:
    """Try about so many scripts, and return how it went and what failed."""
    counts: Counter[str] = Counter()
    failures = []
    for seed in range(first, first + -(-count // SCRIPTS)):
        for failure in trial(seed, counts):
            failures.append(failure)
            sys.stdout.write(f"{failure}\n")
            sys.stdout.flush()
    return counts, failures


def main(arguments: Sequence[str]) -> int:
    """Try that many scripts, from a seed on, and return how many failed."""
    count, first = [*map(int, arguments), *(20_000, 0)[len(arguments) :]]
    counts, failures = fuzz(count, first)
    sys.stdout.write(f"{dict(sorted(counts.items()))}\n")
    return min(len(failures), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
