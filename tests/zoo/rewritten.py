"""Every pass of the library, and `compile`, on programs of the zoo, run before and after.

``python -m tests.zoo.rewritten NAME …`` prints a line of JSON for each.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import passes
from irgraph.api import rewrite, run_script
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_pass
from tests.zoo.examine import BATCH, LIMIT, OTHER, captured_at, sentence, stop

TOGETHER = (
    "clean-copies, fuse-embedding, fuse-epilogue, fuse-optimizer, batch-gemm, fuse-add-norm, "
    "hoist-h2d, remove-dead"
)
"""A pipeline as one would run it; it is compared on three draws, single passes on one."""

BUCKETS = "overlap-allreduce, bucket-allreduce"
"""Sums of gradients in buckets, in programs of one rank too."""

COMPILE = "compile"
"""The statement, which is no pass."""

GIVEN = {"resize-batch": f"resize-batch(to = {OTHER})"}
"""Calls of passes that need arguments."""

RESIZED = "resize-batch"


@dataclass
class Rewritten:
    """What the passes made of one program.

    Attributes:
        name: of the program.
        same: passes that change the graph and leave what the step computes.
        meant: passes that change results on purpose, where they apply; what they make is executed.
        wrong: what went wrong, by pass.
        problem: why nothing could be tried, if so.
        seconds: how long it took.
    """

    name: str
    same: list[str] = field(default_factory=list)
    meant: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0


def rewritten(name: str) -> Rewritten:
    """Apply every pass to a program, and compare what it computes before and after."""
    found, begin = Rewritten(name), time.monotonic()
    try:
        graph = captured_at(name, BATCH, symbolic=True).graph
        if not (start := compare(graph, graph, draws=1)).same:
            found.problem = start.lines()[0]
    except Exception as error:  # what went wrong is the finding
        found.problem = sentence(error)
    for call in () if found.problem else calls(graph):
        try:
            _judge(found, call, graph)
        except Exception as error:
            found.wrong[call] = sentence(error)
    found.seconds = round(time.monotonic() - begin, 1)
    return found


def calls(graph: Graph) -> Iterator[str]:
    """Yield the passes that can be called without knowing the program, and some together."""
    for name in passes.names():
        if name in GIVEN:
            yield from [GIVEN[name]] * (name != RESIZED or "B" in graph.dims)
        elif all(parameter.default for parameter in load_pass(name).parameters):
            yield name
    yield from (TOGETHER, BUCKETS, COMPILE)


def _judge(found: Rewritten, call: str, graph: Graph) -> None:
    """Note what one pass does to a program."""
    several = call in (TOGETHER, BUCKETS, COMPILE)
    name = call if several else call.partition("(")[0]
    try:
        after = (run_script if call == COMPILE else rewrite)(graph, call).graph
    except IrgraphError as error:
        if error.exit_code != 1:
            raise
        return  # a refusal
    if after == graph:
        return
    if not several and load_pass(name).changing:
        compare(after, after, draws=1)  # it can be executed
        found.meant.append(name)
        return
    result = compare(graph, after, draws=3 if call == TOGETHER else 1)
    if result.same:
        found.same.append(name)
    else:
        found.wrong[name] = "; ".join(result.lines()[:2])


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, stop)
    for name in sys.argv[1:]:
        signal.alarm(LIMIT)
        print(json.dumps(asdict(rewritten(name))), flush=True)  # noqa: T201
        signal.alarm(0)
