"""Times in every spelling: each decoder gives what exact arithmetic gives."""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.reading.trace import EventKind, KinetoTrace

SINCE_1970 = 1_712_195_495_406_752
"""Microseconds since 1970: as floats, such times are exact to 0.25 us."""

BASES = st.sampled_from([0, 7_000_000_000_000, SINCE_1970])


def event(name: str, ts: str, dur: str, **fields: object) -> str:
    """Return a complete event with its times as they are spelled."""
    rest = json.dumps({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, **fields})
    return f'{rest[:-1]}, "ts": {ts}, "dur": {dur}}}'


def read(events: list[str]) -> KinetoTrace:
    """Read a trace of these events."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text('{"traceEvents": [' + ", ".join(events) + "]}")
        return read_kineto(path)


@settings(deadline=None)
@given(
    BASES,
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=2, max_size=9),
)
def test_times_of_any_spelling_are_exact(
    base: int, digits: int, times: list[tuple[int, int]]
) -> None:
    """At most three decimals are nanoseconds; the rest of more is left out."""
    unit = Decimal(10) ** -digits
    spelled = sorted((base + start * unit, length * unit) for start, length in times)
    trace = read([event(f"op{i}", str(ts), str(dur)) for i, (ts, dur) in enumerate(spelled)])
    starts = [int(ts * 1000) for ts, _ in spelled]
    rows = sorted(range(len(trace)), key=lambda row: int(trace.text(row)[2:]))
    tolerance = 1 if digits > 3 else 0
    for row, start, (_, dur) in zip(rows, starts, spelled, strict=True):
        measured = trace.base + int(trace.columns["start"][row])
        assert abs(measured - start) <= tolerance
        assert int(trace.columns["duration"][row]) == int(dur * 1000)


@pytest.mark.parametrize("ts", ["{}.0", "{}", "{}.000"])
def test_whole_times_with_decimals_are_microseconds(ts: str) -> None:
    """They show no fraction, and without decimals 60 events of 300 and more are nanoseconds."""
    trace = read([event("op", ts.format(1000 * i), "300.0") for i in range(60)])
    assert int(trace.columns["duration"][0]) == 300_000
    assert "K07" not in trace.health.counts


def test_times_as_text_among_floats_are_read() -> None:
    trace = read([event("a", "10.125", "1.5"), event("b", '"20.25"', "1.5")])
    assert trace.columns["start"].tolist() == [0, 10_125]
    assert trace.health.counts["K09"] == 1
    assert trace.health.exit_code == 3


@pytest.mark.parametrize("base", ["4458676522690", str(SINCE_1970)])
@pytest.mark.parametrize("decimals", ["", ".8", ".655"])
def test_arrows_lead_from_backward_operators_to_forward_ones(base: str, decimals: str) -> None:
    start = base + decimals
    later = str(int(base) + 100) + decimals
    arrow = (
        '{{"ph": "{}", "id": 1, "pid": 1, "tid": 2, "ts": {}, "cat": "fwdbwd", "name": "fwdbwd"}}'
    )
    trace = read(
        [
            event("aten::div", start, "5.25"),
            event("DivBackward0", later, "7.5"),
            arrow.format("s", start),
            arrow.format("f", later),
        ]
    )
    forward, backward = trace.rows(EventKind.OP)
    assert trace.forward_links == {backward: forward}
