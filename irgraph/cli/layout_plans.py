"""Output of ``irgraph plan`` for layouts of a step over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from irgraph.cli import common as cli
from irgraph.cli.traces import print_rows

if TYPE_CHECKING:
    from irgraph.planning.layouts.result import LayoutResult, LayoutSearch

GIB = 2.0**30

SERIAL = (
    "no communication overlaps with work; --overlap moves collectives of data ranks to a stream"
)
CONCURRENT = (
    "collectives of data ranks run on a separate stream, which a plan's file does not contain"
)
"""Notes about the streams of collectives."""


def show_layouts(
    search: LayoutSearch, memory: float, max_rows: int, output: str | None, *, overlap: bool
) -> None:
    """Print a row for each of the best layouts, and the layouts that are excluded."""
    from irgraph.planning.layouts.result import reason_of_order
    from irgraph.predict.ranks import collective_notes

    best, *others = search.results
    print_rows("layouts", [_cells(result) for result in search.results[:max_rows]])
    if others:
        cli.print_error(f"why the second is second: {reason_of_order(best, others[0])}")
    for statement in _statements(best):
        cli.print_error(f"before `shard`: {statement}")
    for name, scheme in best.layout.layers.items():
        cli.print_error(f"{scheme}: {name}")
    for line in (*exclusions(search, memory), *search.warnings):
        cli.print_error(line)
    cli.print_error(CONCURRENT if overlap else SERIAL)
    for line in collective_notes([best.prediction]):
        cli.print_error(line)
    if output is None:
        cli.print_error(str(best.plan).rstrip())


def exclusions(search: LayoutSearch, memory: float) -> list[str]:
    """Return lines about the layouts that were not simulated, and layers that are not split."""
    lines = [f"{search.count} layouts: {search.simulated} simulated"]
    if search.slow:
        min_time = min(layout.bound for layout in search.slow) / 1e3
        lines[0] += f", {len(search.slow)} not, as each takes at least {min_time:.3f} ms by a bound"
    if search.unfit:
        smallest = search.unfit[0]
        size = f"{'more than ' * smallest.is_bound}{smallest.memory / GIB:.2f} GiB"
        count = len(search.unfit)
        lines.append(
            f"{count} layout{'s do' if count > 1 else ' does'} not fit into {memory / GIB:.2f} GiB:"
            f" the smallest, {smallest.layout}, needs {size} on a rank"
        )
    layouts_by_reason: dict[str, list[str]] = {}
    for refused in search.refused:
        layouts_by_reason.setdefault(refused.reason, []).append(refused.layout.mesh)
    for reason, layouts in layouts_by_reason.items():
        lines.append(f"refused: {reason} ({'; '.join(dict.fromkeys(layouts))})")
    lines += [f"not split: {name}: {reason}" for name, reason in search.replicated.items()]
    return lines


def layouts_json(search: LayoutSearch, memory: float, max_rows: int) -> dict[str, Any]:
    """Return a search as plain values."""
    from msgspec import to_builtins

    from irgraph.planning.layouts.result import reason_of_order
    from irgraph.predict.ranks import collective_notes

    best, *others = search.results
    return {
        "plan": to_builtins(best.plan),
        "statements_before": _statements(best),
        "layouts": [_figures(result) for result in search.results[:max_rows]],
        "second": reason_of_order(best, others[0]) if others else "",
        "memory_bytes": memory,
        "layouts_count": search.count,
        "simulated": search.simulated,
        "slower_by_bound": [
            {"layout": str(slow.layout), "min_step_us": slow.bound} for slow in search.slow
        ],
        "too_large": [
            {"layout": str(u.layout), "memory_bytes": u.memory, "is_bound": u.is_bound}
            for u in search.unfit
        ],
        "refused": [{"layout": str(r.layout), "reason": r.reason} for r in search.refused],
        "not_split": dict(search.replicated),
        "warnings": list(search.warnings),
        "rests_on": collective_notes([best.prediction]),
    }


def _statements(result: LayoutResult) -> list[str]:
    """Return the statements of a script that come before ``shard``."""
    from irgraph.planning.layouts.recomputation import statement_of

    return [statement_of(path) for path in result.layout.recomputed]


def _figures(result: LayoutResult) -> dict[str, Any]:
    return {
        "layout": result.layout.mesh,
        "data": result.layout.data,
        "tensor": result.layout.tensor,
        "sharding": result.layout.sharding,
        "layers": dict(result.layout.layers),
        "recomputed": list(result.layout.recomputed),
        "step_us": result.step_time,
        "interval_us": list(result.interval),
        "samples_per_second": result.rate,
        "memory_bytes": result.memory,
        "exposed_us": result.exposed,
        "causes_us": result.causes,
    }


def _cells(result: LayoutResult) -> dict[str, str]:
    low, high = result.interval
    return {
        "layout": result.layout.mesh,
        "split layers": result.layout.short_names or "-",
        "step_ms": f"{result.step_time / 1e3:.3f}",
        "interval_ms": f"{low / 1e3:.3f} to {high / 1e3:.3f}",
        "samples/s": f"{result.rate:.1f}" if result.samples else "-",
        "memory_gib": f"{result.memory / GIB:.2f}",
        "exposed_ms": f"{result.exposed / 1e3:.3f}",
    }
