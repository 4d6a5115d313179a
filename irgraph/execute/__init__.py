"""Runs a graph with torch on the CPU, and compares two graphs by running both.

Nothing here imports torch before a graph is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from irgraph.diagnostics import fail
from irgraph.execute.records import Compared, Comparison, Coverage, Result
from irgraph.ir.graph import Graph, check_graph

__all__ = ["Compared", "Comparison", "Coverage", "Result", "compare", "compare_ranks", "execute"]

ROWS = 1000
"""Number of rows to which long tables are cut if a graph uses much memory."""

DRAWS = 8
"""Default number of draws: one in each manner."""

LIMIT = 2 << 30
"""Maximum number of bytes of all tensors of one graph together."""


def execute(
    graph: Graph,
    inputs: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    limit: int = LIMIT,
) -> Result:
    """Run the device ops of a graph with torch on the CPU, in launch order.

    Args:
        graph: the step; copies between host and device stay on the CPU.
        inputs: values (anything that ``torch.as_tensor`` accepts) by tensor name, of tensors that
            exist before the step or of memory that the program itself filled; the others are drawn
            from ``seed``.
        seed: for drawn values and for random ops.
        dims: other sizes of the graph's dimensions.
        limit: maximum number of bytes of all tensors together.

    Raises:
        IrgraphError: an op cannot be executed (all such ops are named), an op failed, a size
            differs from the graph's, the graph is too large, or torch is missing (exit code 2).
    """
    _need_torch()
    from irgraph.execute.machine import run
    from irgraph.execute.sizes import check_memory, resize

    small = resize(graph, dims or {})
    check_memory((small,), limit)
    return run(small, inputs or {}, seed)


def compare(
    before: Graph,
    after: Graph,
    *,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    rows: int = ROWS,
    limit: int = LIMIT,
    widen: bool = True,
    draws: int = DRAWS,
) -> Comparison:
    """Run two graphs on the same values and compare every tensor that leaves the step.

    Args:
        before: a step.
        after: the step after a rewrite; tensors are matched by name.
        seed: for the initial values of both.
        dims: sizes of dimensions; the others are 8, 5 and 3 in turn, or unchanged if that is less.
        rows: number of rows to which longer tables are cut in both, if a graph would use more than
            256 MiB.
        limit: maximum number of bytes of all tensors of one graph together.
        widen: compute in f64 (or f32, if torch has no f64 kernel), so that roundings hide no
            mistake.
        draws: number of times that values are drawn, each time in another manner (``docs/check.md``
            has them all). If all are drawn, more draws search for sides of branches that none has
            reached. The first draw on which the graphs differ is the last.

    Raises:
        IrgraphError: an op cannot be executed (all such ops are named) or failed, the graphs are
            too large or start from different tensors, or torch is missing (exit code 2).
    """
    check_graph(before, after)
    _need_torch()
    from irgraph.execute.trials import Trials

    return Trials(before, after, seed, dims or {}, rows, limit, widen).run_draws(max(draws, 1))


def compare_ranks(
    before: Graph,
    ranks: Sequence[Graph],
    *,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    limit: int = LIMIT,
    widen: bool = True,
    draws: int = 3,
) -> Comparison:
    """Run a step, and the models of all ranks that share it, in this process; compare the results.

    Args:
        before: the whole step, at the batch of all ranks together.
        ranks: the model of each rank, in order, as returned by ``shard``.
        seed: as in ``compare``.
        dims: sizes of dimensions on each rank.
        limit: maximum number of bytes of all models together.
        widen: as in ``compare``.
        draws: as in ``compare``.

    Raises:
        IrgraphError: as in ``compare``; or the models are not the ranks of one step (exit code 2),
            or reach different collectives.
    """
    _need_torch()
    from irgraph.execute.ranks.comparison import compare_ranks as run_ranks

    return run_ranks(
        before, ranks, seed=seed, dims=dims or {}, limit=limit, widen=widen, draws=max(draws, 1)
    )


def _need_torch() -> None:
    if find_spec("torch") is None:
        raise fail(
            "executing a graph needs PyTorch", hint="pip install irgraph[torch]", exit_code=2
        )
