"""Everything that real traces do to their readers: one damage, one finding, one test each.

Every row builds its damage, and asserts that the finding is counted in the health report, or that
the file is refused with a reason, or handled elsewhere (execution traces, joins) by the test named.
"""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.reading.health import CODES
from irgraph.capture.kineto.reading.selection import Selection
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto.builder import EVALUATE, START, Event, events, host, kernel, text, write

Change: TypeAlias = Callable[[list[Event]], list[Event] | None]


def each(change: Callable[[Event], Any], **chosen: str) -> Change:
    """Return a change of all events with these values."""

    def apply(found: list[Event]) -> None:
        for event in found:
            if all(event.get(key) == value for key, value in chosen.items()):
                change(event)

    return apply


def without(**chosen: str) -> Change:
    return lambda found: [e for e in found if any(e.get(k) != v for k, v in chosen.items())]


def more(*added: Event) -> Change:
    return lambda found: [*found, *added]


def first(change: Callable[[Event], Any], **chosen: str) -> Change:
    def apply(found: list[Event]) -> None:
        change(next(e for e in found if all(e.get(k) == v for k, v in chosen.items())))

    return apply


def in_graphs(found: list[Event]) -> list[Event]:
    """Let the first launch start the first two kernels, as a CUDA graph does."""
    calls = [e for e in found if e["cat"] == "cuda_runtime"]
    second = next(e for e in found if e["cat"] == "kernel" and e["args"]["correlation"] == 2)
    second["args"]["correlation"] = 1
    return [e for e in found if e is not calls[1]]


def on_three_threads(found: list[Event]) -> list[Event]:
    """Add a thread of the data loader, and a hook on autograd's thread."""
    loader = [host("cpu_op", "aten::stack", START + 20 * i, 10, 777) for i in range(4)]
    hook = host("cpu_op", "c10d::allreduce_", START + 420, 5, 101, **{"External id": 900})
    return [*found, *loader, hook]


def shorter(event: Event) -> None:
    event["dur"] = -5


def earlier(event: Event) -> None:
    event["ts"] -= 20_000


def as_text(**header: Any) -> str:
    return text(events(), **header)


CHANGES: dict[int, tuple[str, Change]] = {
    6: ("K06", lambda found: [e for e in found if "ProfilerStep" not in e["name"]]),
    7: ("K07", each(lambda e: e.update(ts=e["ts"] * 1000, dur=e["dur"] * 1000))),
    8: ("K08", each(lambda e: e.update(ts=e["ts"] + 0.125))),
    9: ("K09", first(shorter, cat="kernel")),
    10: ("K10", each(lambda e: e.update(dur=0), cat="cuda_runtime")),
    11: ("K11", more(host("cpu_op", "aten::late", START + 30, 100))),
    12: ("K12", first(lambda e: e.update(dur=200), cat="kernel")),
    13: ("K13", each(earlier, cat="kernel")),
    14: ("K14", first(lambda e: e["args"].update(correlation=12345), cat="kernel")),
    15: ("K15", in_graphs),
    16: ("K16", lambda found: [*found, *found[:3]]),
    17: ("K17", each(lambda e: e.update(cat="new_runtime"), cat="cuda_runtime")),
    18: ("K18", each(lambda e: e.update(cat="Kernel"), cat="kernel")),
    19: ("K19", lambda found: found),
    20: ("K20", each(lambda e: e["args"].pop("Input Dims", None))),
    24: ("K24", on_three_threads),
    25: ("K25", more(host("overhead", "Buffer Flush", START + 20, 5))),
    27: ("K27", without(cat="kernel")),
}
"""By row: the code that a changed trace is reported with."""

FILES: dict[int, tuple[str, bytes, str]] = {
    1: ("K01", as_text().encode()[:-3000], "trace.json"),
    3: ("K03", gzip.compress(as_text().encode(), mtime=0), "trace.json"),
    4: ("K04", as_text().replace("aten::relu", "aten::\x01relu").encode(), "trace.json"),
}
"""By row: the code that a file is reported with, its bytes and its name."""

ELSEWHERE: dict[int, tuple[str, ...]] = {
    2: ("kineto.reading.test_containers:test_other_files_are_named",
        "kineto.reading.test_containers:test_tar_archive_is_named"),
    5: (
        "kineto.reading.test_selection:test_of_a_large_trace_the_last_steps_are_read_and_that_is_said",
        "kineto.reading.test_selection:test_a_large_trace_without_steps_is_refused",
    ),
    21: ("execution_trace.test_reader:test_versions_are_read_alike",
         "execution_trace.test_reader:test_unknown_version_is_a_warning"),
    22: ("kineto.lower.test_join:test_another_model_is_refused",
         "kineto.lower.test_join:test_another_step_is_refused"),
    23: ("kineto.lower.test_join:test_by_order_in_every_iteration",
         "kineto.lower.test_join:test_ids_that_name_other_calls_are_not_believed"),
    26: ("execution_trace.test_lowering:test_a_reused_tensor_and_storage_id_is_another_tensor",
         "common.test_identity:test_a_definition_ends_what_a_storage_id_meant"),
    28: ("kineto.reading.test_ingest:test_same_columns_whatever_the_hash_seed",),
}  # fmt: skip
"""By row: tests that build the damage where it is no finding of one trace."""


def report(path: Path) -> tuple[dict[str, int], list[str]]:
    trace = read_kineto(path)
    build_tree(trace)
    return trace.health.counts, trace.health.lines()


def test_every_row_has_its_test() -> None:
    assert sorted([*CHANGES, *FILES, *ELSEWHERE]) == list(range(1, 29))


@pytest.mark.parametrize("row", sorted(CHANGES))
def test_changed_events_are_reported(tmp_path: Path, row: int) -> None:
    code, change = CHANGES[row]
    counts, lines = report(write(tmp_path, change))
    assert counts[code] > 0
    assert any(line.startswith(code) and CODES[code][1] in line for line in lines)
    assert len(lines) <= 25


@pytest.mark.parametrize("row", sorted(set(CHANGES) - {19}))
def test_a_sound_trace_reports_none_of_it(tmp_path: Path, row: int) -> None:
    assert CHANGES[row][0] not in report(write(tmp_path))[0]


@pytest.mark.parametrize("row", sorted(FILES))
def test_changed_files_are_reported(tmp_path: Path, row: int) -> None:
    code, data, name = FILES[row]
    (tmp_path / name).write_bytes(data)
    assert report(tmp_path / name)[0][code] > 0


@pytest.mark.parametrize("row", sorted(ELSEWHERE))
def test_the_tests_named_are_there(row: int) -> None:
    for place in ELSEWHERE[row]:
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(f"tests.capture.{module}"), name))


def test_every_code_is_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "traces.md").read_text()
    assert [code for code in CODES if code not in page] == []


def test_a_partial_overlap_within_a_microsecond_is_cut(tmp_path: Path) -> None:
    late = host("cpu_op", "aten::inner", START + 30, 30.5)
    trace = read_kineto(write(tmp_path, more(late)))
    tree = build_tree(trace)
    row = next(r for r in range(len(trace)) if trace.text(r) == "aten::inner")
    assert trace.text(int(tree.parent[row])) == "aten::linear"
    assert int(tree.end[row]) == int(tree.end[tree.parent[row]])
    assert "K11" not in trace.health.counts


def test_a_larger_overlap_makes_neighbours(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path, CHANGES[11][1]))
    tree = build_tree(trace)
    row = next(r for r in range(len(trace)) if trace.text(r) == "aten::late")
    assert trace.text(int(tree.parent[row])).startswith("ProfilerStep")
    assert trace.health.counts["K11"] == 1


def test_threads_of_the_engine_hooks_and_loaders_are_told_apart(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path, on_three_threads))
    tree = build_tree(trace)
    by_name = {trace.text(row): row for row in range(len(trace))}
    assert tree.is_backward_thread(by_name[EVALUATE])
    assert tree.is_backward_thread(by_name["c10d::allreduce_"])
    assert not tree.is_backward_thread(by_name["aten::stack"])
    assert int(trace.columns["thread"][by_name["aten::linear"]]) == tree.main
    assert trace.health.counts["K24"] == 1


def test_backward_operators_know_their_forward(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path))
    tree = build_tree(trace)
    pairs = {(trace.text(a), trace.text(b)) for a, b in tree.forward_of.items()}
    assert pairs == {(EVALUATE, "aten::linear")}


def test_a_thread_number_used_in_two_processes_is_two_threads(tmp_path: Path) -> None:
    other = {**host("cpu_op", "aten::fork", START + 30, 100), "pid": 2}
    trace = read_kineto(write(tmp_path, more(other)))
    tree = build_tree(trace)
    row = next(r for r in range(len(trace)) if trace.text(r) == "aten::fork")
    assert int(tree.parent[row]) == -1
    assert "K11" not in trace.health.counts


def test_graph_kernels_keep_their_streams_and_their_launch(tmp_path: Path) -> None:
    extra = kernel("beside", START + 55, 20, 1, 9)
    trace = read_kineto(write(tmp_path, lambda found: [*in_graphs(found), extra]))
    tree = build_tree(trace)
    launched = [row for row in range(len(trace)) if tree.launch[row] >= 0]
    of_graph = [row for row in launched if int(trace.columns["correlation"][row]) == 1]
    assert len({int(tree.launch[row]) for row in of_graph}) == 1
    assert sorted(int(trace.columns["stream"][row]) for row in of_graph) == [7, 7, 9]
    assert trace.health.details["K15"] == "up to 3 events each"


def test_a_large_trace_with_nothing_to_choose_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError) as caught:
        read_kineto(write(tmp_path), selection=Selection(memory=100))
    assert caught.value.exit_code == 4
