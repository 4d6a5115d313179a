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
"""Rows that long tables are cut to where a graph takes much memory."""

LIMIT = 2 << 30
"""Bytes that the tensors of one graph may take together."""


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
        inputs: values (whatever ``torch.as_tensor`` takes) by tensor name, of what exists before
            the step or of memory that the program itself filled; the rest is drawn from ``seed``.
        seed: for the values that are drawn and for random ops.
        dims: other sizes of the graph's dimensions.
        limit: bytes that all tensors together may take.

    Raises:
        IrgraphError: an op cannot be executed (all such ops are named), an op failed, a size is
            not what the graph says, the graph is too large, or torch is missing (exit code 2).
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
    draws: int = 3,
) -> Comparison:
    """Run two graphs on the same values and compare every tensor that leaves the step.

    Args:
        before: a step.
        after: what a rewrite made of it; tensors are matched by name.
        seed: for the values that both start from.
        dims: sizes of dimensions; those not given are 8, 5 and 3 by turns, or what they are if that
            is less.
        rows: what longer tables are cut to, in both, if a graph would take more than 256 MiB.
        limit: bytes that the tensors of one graph may take together.
        widen: compute in f64 (or f32, where torch has no kernel for that), so that roundings hide
            no mistake.
        draws: times that values are drawn: of both signs, of many magnitudes, and with nan, by
            turns. The first on which the two differ is the last.

    Raises:
        IrgraphError: an op cannot be executed (all such ops are named) or failed, the graphs are
            too large or start from other tensors, or torch is missing (exit code 2).
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
    """Run a step, and the models of all ranks that share it, in this process; compare what leaves.

    Args:
        before: the whole step, at the batch of all ranks together.
        ranks: the model of each rank, in order, as ``shard`` makes them.
        seed: as of ``compare``.
        dims: sizes of dimensions on each rank.
        limit: bytes that all models together may take, as of ``compare``.
        widen: as of ``compare``.
        draws: as of ``compare``.

    Raises:
        IrgraphError: as ``compare``; or the models are not the ranks of one step (exit code 2), or
            come to different collectives.
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
