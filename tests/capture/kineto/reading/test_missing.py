"""Records that are gone from a trace whose JSON is valid, all that names them included."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.reading.health import Health
from tests.capture.kineto.builder import (
    ENGINE,
    MAIN,
    START,
    STEP_US,
    STEPS,
    Event,
    events,
    host,
    numbered,
    write,
)


def health(folder: Path, found: list[Event]) -> Health:
    trace = read_kineto(write(folder, lambda _: found))
    build_tree(trace)
    return trace.health


def without(step: int, *sorts: str) -> Callable[[Event], bool]:
    """Return whether an event stays when a step's events of some categories, or all, are taken."""
    begin = START + step * (STEP_US + 10)
    return lambda event: (
        not (begin <= event["ts"] < begin + STEP_US and (not sorts or event["cat"] in sorts))
    )


def old(found: list[Event]) -> list[Event]:
    """Number operators by their ids alone, in blocks of a thread, as traces of 2021 do."""
    calls = [copy.deepcopy(e) for e in found if e["cat"] in ("cpu_op", "user_annotation")]
    for first, thread in ((1, MAIN), (1025, ENGINE)):
        for number, event in enumerate(e for e in calls if e["tid"] == thread):
            event["args"]["External id"] = first + number
    return calls


def test_a_sound_trace_is_clean(tmp_path: Path) -> None:
    assert health(tmp_path, numbered(events())).exit_code == 0
    assert health(tmp_path, old(events())).exit_code == 0


@pytest.mark.parametrize("step", range(STEPS))
def test_a_whole_step_taken_out_is_said(tmp_path: Path, step: int) -> None:
    left = list(filter(without(step), numbered(events())))
    found = health(tmp_path, left)
    assert found.exit_code == 3
    if step < STEPS - 1:
        assert found.counts["K36"] == 5
        assert found.details["K36"] == f"numbers {5 * step} to {5 * step + 4}"
    else:
        assert found.counts["K37"] == STEP_US + 10 + 30


def test_a_single_record_that_is_gone_is_said(tmp_path: Path) -> None:
    found = numbered(events())
    found.remove(next(e for e in found if e["name"] == "aten::relu"))
    assert health(tmp_path, found).counts["K36"] == 1


def test_ids_of_old_traces_count(tmp_path: Path) -> None:
    found = old(events() * 10)
    assert "K36" not in health(tmp_path, found).counts
    left = [e for e in found if not 40 <= e["args"]["External id"] < 60]
    assert health(tmp_path, left).counts["K36"] == 20
    few = [e for e in found if e["args"]["External id"] % 3]
    assert "K36" not in health(tmp_path, few).counts


def test_numbers_of_what_is_left_out_count(tmp_path: Path) -> None:
    """Records of memory are instants, and categories can be left out: both have numbers."""
    found = numbered(events())
    path = write(
        tmp_path,
        lambda _: [
            *found,
            {**host("cpu_instant_event", "[memory]", START, 0, **{"Ev Idx": 15}), "ph": "i"},
            host("python_function", "x", START, 5, **{"Ev Idx": 16}),
            {**host("cpu_instant_event", "[memory]", START, 0, **{"Ev Idx": 17}), "ph": "i"},
        ],
    )
    assert "K36" not in read_kineto(path).health.counts


def test_a_pause_at_the_end_without_marks(tmp_path: Path) -> None:
    plain = [e for e in events() if e["cat"] != "user_annotation"]
    assert "K37" not in health(tmp_path, numbered(plain)).counts
    left = list(filter(without(STEPS - 1), numbered(plain)))
    assert health(tmp_path, left).counts["K37"] > STEP_US


def test_what_follows_the_only_step_is_no_lost_step(tmp_path: Path) -> None:
    """The profiler stops, or the program does something else, after a step that is complete."""
    single = [e for e in events() if e["ts"] < START + STEP_US]
    found = [*numbered(single)]
    found[-1]["dur"] += 50 * STEP_US
    assert health(tmp_path, found).exit_code == 0


def test_the_profiler_takes_time_to_stop(tmp_path: Path) -> None:
    plain = numbered([e for e in events() if e["cat"] != "user_annotation"])
    plain[-1]["dur"] += 800
    assert "K37" not in health(tmp_path, plain).counts
    plain[-1]["dur"] += 300
    assert health(tmp_path, plain).counts["K37"] > 1000


@pytest.mark.parametrize(
    ("gone", "said"),
    [(("cuda_runtime", "kernel"), "runtime calls"), (("cpu_op",), "operators")],
)
def test_a_step_without_operators_or_launches_is_said(
    tmp_path: Path, gone: tuple[str, ...], said: str
) -> None:
    found = health(tmp_path, list(filter(without(1, *gone), numbered(events()))))
    assert found.details["K38"] == f"1 without {said}"
    everywhere = [e for e in numbered(events()) if e["cat"] not in ("cuda_runtime", "kernel")]
    assert "K38" not in health(tmp_path, everywhere).counts


def test_few_kernels_that_are_missing_are_reported_by_their_time(tmp_path: Path) -> None:
    """One of 1,200 launches, below one in a thousand, whose operator takes most of the time."""
    found = [copy.deepcopy(e) for k in range(100) for e in _later(events(), k)]
    kernels = [e for e in found if e["cat"] == "kernel" and "linear" in e["name"]]
    for kernel in kernels:
        kernel["dur"] = 95
    found.remove(kernels[7])
    result = health(tmp_path, found)
    assert result.exit_code == 3
    assert result.counts["K34"] == 1
    assert "of about 95 us of device time" in result.details["K34"]


def _later(found: list[Event], copies: int) -> list[Event]:
    """Return the events of a sound trace, moved on by some copies of it, with new numbers."""
    shift = copies * STEPS * (STEP_US + 10)
    moved = copy.deepcopy(found)
    for event in moved:
        event["ts"] += shift
        for key in ("correlation", "External id", "Sequence number"):
            if key in event["args"]:
                event["args"][key] += 100 * copies
        if event["name"].startswith("ProfilerStep"):
            number = int(event["name"].partition("#")[2]) + STEPS * copies
            event["name"] = f"ProfilerStep#{number}"
    return moved


def test_copies_of_nothing_have_no_work(tmp_path: Path) -> None:
    """A copy or a memset of no bytes leaves no record; it is no contradiction."""
    found = events()
    call = next(e for e in found if e["cat"] == "cuda_runtime")
    for name in ("cudaMemsetAsync", "cudaMemcpyAsync"):
        args = {**call["args"], "correlation": 90_000}
        found.append({**call, "name": name, "ts": call["ts"] + 20, "args": args})
    assert "K34" not in health(tmp_path, found).counts


def test_a_field_that_an_event_has_twice_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"dur":', '"dur": 1, "dur":', 1))
    assert "K39" not in read_kineto(write(tmp_path, name="sound.json")).health.counts
    trace = read_kineto(path)
    assert trace.health.counts["K39"] == 1
    assert trace.health.exit_code == 3
