"""Ops to measure that read or write rows at given places."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.measure.bench import Array, Bench
from costmodels.measure.calls import Call, Maker, gradient


def _tril(bench: Bench) -> Call:
    torch, side = bench.torch, bench["side"]
    given = bench.values(bench["batch"], side, side)
    rows, columns = torch.tril_indices(side, side, -1, device=bench.device)
    if bench.case.op == "tril_index":
        return lambda: given[:, rows, columns]
    values = bench.values(bench["batch"], len(rows))
    places = (None, rows, columns)
    return lambda: torch.ops.aten.index_put_(given, list(places), values, True)


def _scatter(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    table = bench.values(bench["rows"], bench["dim"])
    rows = bench.rows(bench["rows"], bench["count"])
    if op == "index_select":
        return lambda: table.index_select(0, rows)
    values = bench.values(bench["count"], bench["dim"])
    if op == "index_add":
        return lambda: table.index_add_(0, rows, values)
    places = rows[:, None].expand(-1, bench["dim"])
    if op == "gather":
        return lambda: torch.gather(table, 0, places)
    return lambda: table.scatter_add_(0, places, values)


def _tables(bench: Bench) -> Call:
    """Prepare lookups of one table, or of several of the same size, one call each."""
    make = _bag if bench.case.op.startswith("embedding_bag") else _embedding
    calls = [make(bench) for _ in range(bench["tables"])]
    return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]


def _bag(bench: Bench) -> Call:
    torch, count = bench.torch, bench["batch"] * bench["lookups"]
    mode = bench.case.op.removeprefix("embedding_bag_")
    backward = mode.startswith("backward")
    table = bench.values(bench["rows"], bench["dim"], grad=backward)
    if mode in ("backward", "backward_max"):
        bench.spend(table.nbytes)
    indices = bench.rows(bench["rows"], count)
    offsets = torch.arange(0, count, bench["lookups"], device=bench.device)
    lookup = torch.nn.functional.embedding_bag
    if mode == "weighted":
        weights = bench.values(count)
        return lambda: lookup(indices, table, offsets, mode="sum", per_sample_weights=weights)
    if not backward:
        return lambda: lookup(indices, table, offsets, mode=mode)
    kind = "max" if mode.endswith("max") else "sum"
    result: Array = lookup(indices, table, offsets, mode=kind, sparse=mode.endswith("sparse"))
    return gradient(bench, result, table)


def _embedding(bench: Bench) -> Call:
    lookup, backward = bench.torch.nn.functional.embedding, bench.case.op.endswith("backward")
    table = bench.values(bench["rows"], bench["dim"], grad=backward)
    indices = bench.rows(bench["rows"], bench["batch"] * bench["lookups"])
    if not backward:
        return lambda: lookup(indices, table)
    bench.spend(table.nbytes)
    return gradient(bench, lookup(indices, table), table)


LOOKUPS: Mapping[str, Maker] = {
    **dict.fromkeys(("tril_index", "tril_index_backward"), _tril),
    **dict.fromkeys(("index_select", "gather", "index_add", "scatter_add"), _scatter),
    **dict.fromkeys(
        ("embedding_bag_sum", "embedding_bag_mean", "embedding_bag_max", "embedding_bag_weighted",
         "embedding_bag_backward", "embedding_bag_backward_sparse", "embedding_bag_backward_max",
         "embedding", "embedding_backward"),
        _tables,
    ),
}  # fmt: skip
"""What makes each op's call, by the op's name."""
