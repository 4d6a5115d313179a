"""Reading traces: bytes, units, and the damage that real ones show."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from irgraph.capture.kineto import EventKind, KinetoTrace, read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.reading.selection import Marks
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto import builder
from tests.capture.kineto.builder import START, Event, events, host, kernel, text, write

STEPS = [1000.0, 1000.0, 1000.0]


def step_times(trace: KinetoTrace) -> list[float]:
    return [step.time for step in build_tree(trace).steps]


def damaged(folder: Path, data: bytes | str, name: str = "trace.json") -> KinetoTrace:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_kineto(path)


def kernels(found: list[Event]) -> list[Event]:
    return [e for e in found if e["cat"] == "kernel"]


def test_sound_trace_is_clean_and_complete(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path))
    assert len(trace) == len(events())
    assert trace.health.exit_code == 0
    assert set(trace.health.counts) <= {"K19"}
    assert step_times(trace) == STEPS
    assert int(trace.on_device.sum()) == 12


# row 1: truncated files


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 0.99])
def test_truncated_text_keeps_complete_events(tmp_path: Path, share: float) -> None:
    whole = text(events())
    trace = damaged(tmp_path, whole[: int(len(whole) * share)])
    assert trace.health.exit_code == 3
    assert "K01" in trace.health.counts
    assert "byte" in trace.health.details["K01"]
    assert 0 < len(trace) <= len(events())


def test_step_that_is_cut_off_is_incomplete(tmp_path: Path) -> None:
    whole = text(events())
    trace = damaged(tmp_path, whole[: whole.index("aten::add_", whole.index("ProfilerStep#7"))])
    assert [step.complete for step in build_tree(trace).steps] == [True, True, False]


def test_truncated_gzip_keeps_what_was_packed(tmp_path: Path) -> None:
    data = gzip.compress(text(events() * 20).encode(), mtime=0)
    trace = damaged(tmp_path, data[: len(data) // 2], "trace.json.gz")
    assert "K01" in trace.health.counts
    assert len(trace) > 0


def test_damaged_gzip_keeps_what_comes_before(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(text(events() * 200).encode(), 1, mtime=0))
    middle = len(data) // 2
    data[middle : middle + 8] = b"\xff" * 8
    try:
        trace = damaged(tmp_path, bytes(data), "trace.json.gz")
    except IrgraphError as error:
        assert "gzip" in str(error)
        return
    assert trace.health.exit_code == 3


# row 4: broken bytes


@pytest.mark.parametrize(
    "name",
    [b"a\x01b", b"a\nb", b"a\xff\xfeb", b"C:\\users\\x", b"tab\there"],
)
def test_broken_names_are_mended(tmp_path: Path, name: bytes) -> None:
    data = text(events()).encode().replace(b"aten::relu", name)
    trace = damaged(tmp_path, data)
    assert len(trace) == len(events())
    assert trace.health.exit_code in (0, 3)
    assert step_times(trace) == STEPS


def test_nan_drops_the_event_and_says_so(tmp_path: Path) -> None:
    data = text(events()).replace('"dur": 50', '"dur": NaN', 1)
    trace = damaged(tmp_path, data)
    assert len(trace) == len(events()) - 1
    assert trace.health.exit_code == 3


def test_lost_braces_cost_few_events(tmp_path: Path) -> None:
    data = text(events())
    at = data.index("aten::relu") + 40
    trace = damaged(tmp_path, data[:at] + data[at + 60 :])
    assert len(trace) >= len(events()) - 2
    assert "K04" in trace.health.counts


# row 6: steps


def unmarked(found: list[Event]) -> None:
    """Call the profiler's marks something else."""
    for event in found:
        if event["name"].startswith("ProfilerStep"):
            event["name"] = "iteration"


def test_without_marks_the_whole_trace_is_one_step_and_periods_are_proposed(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path, unmarked))
    steps = build_tree(trace).steps
    assert [(step.time, step.mark) for step in steps] == [(3020.0, "trace")]
    assert "--step-mark 'iteration' (comes back 3 times)" in trace.health.details["K06"]


@pytest.mark.parametrize("lead", [True, False])
def test_an_annotation_of_every_other_step_is_not_proposed_alone(
    lead: bool, tmp_path: Path
) -> None:
    """So is what comes back with each step: another annotation, or an operator."""
    found: list[Event] = []
    for step in range(10):
        at = START + 1000 * step
        if step % 2 == 0:
            found.append(host("user_annotation", "log", at, 5))
        if lead:
            found.append(host("user_annotation", "batch", at + 6, 900))
        for number, name in enumerate(["aten::linear", "aten::relu", "aten::relu", "aten::add_"]):
            correlation = 10 * step + number + 1
            found += builder.operator(name, at + 10 + 100 * number, correlation)
    trace = read_kineto(write(tmp_path, lambda _: found))
    assert [step.mark for step in build_tree(trace).steps] == ["trace"]
    proposed = "batch" if lead else "aten::linear"
    expected = f"'log' (comes back 5 times) or '{proposed}' (comes back 10 times) would divide it"
    assert expected in trace.health.details["K06"]


def test_a_mark_that_the_user_names_begins_each_step(tmp_path: Path) -> None:
    path = write(tmp_path, unmarked)
    steps = build_tree(read_kineto(path), Marks("iteration")).steps
    assert [step.time for step in steps] == [1010.0, 1010.0, 1000.0]
    assert {step.mark for step in steps} == {"iteration"}
    with pytest.raises(IrgraphError, match=r"nothing is called 'iterations'; did you mean"):
        build_tree(read_kineto(path), Marks("iterations"))


def test_the_last_step_of_a_mark_reaches_to_the_end_of_its_work(tmp_path: Path) -> None:
    def late(found: list[Event]) -> None:
        unmarked(found)
        found[-1]["ts"] += 5000

    steps = build_tree(read_kineto(write(tmp_path, late)), Marks("iteration")).steps
    last = events()[-1]
    begun = next(e["ts"] for e in reversed(events()) if e["name"].startswith("ProfilerStep"))
    assert steps[-1].time == last["ts"] + 5000 + last["dur"] - begun


def test_the_whole_trace_ends_with_its_last_device_work(tmp_path: Path) -> None:
    def late(found: list[Event]) -> None:
        found[-1]["ts"] += 5000

    trace = read_kineto(write(tmp_path, late))
    (whole,) = build_tree(trace, Marks(whole_trace=True)).steps
    assert whole.end == int(trace.end.max())
    marked = read_kineto(write(tmp_path, late))
    assert len(build_tree(marked).steps) == 3
    assert marked.health.counts["K35"] == 100
    assert "within the steps" in marked.health.details["K35"]


def test_work_launched_before_the_recording_belongs_to_no_step(tmp_path: Path) -> None:
    def orphaned(found: list[Event]) -> None:
        for event in found:
            if "correlation" in event["args"]:
                event["args"]["correlation"] += 100
        found.append(kernel("void earlier()", START + 10, 20, 99))
        found.append(kernel("void lost()", START + 1500, 20, 114))

    tree = build_tree(read_kineto(write(tmp_path, orphaned)))
    rows = {tree.trace.text(row): row for row in range(len(tree.trace))}
    assert tree.step[rows["void earlier()"]] == -1
    assert tree.step[rows["void lost()"]] == 1


def test_a_step_whose_kernels_were_cut_off_is_incomplete(tmp_path: Path) -> None:
    def sorted_by_kind(found: list[Event]) -> list[Event]:
        return sorted(found, key=lambda e: e["cat"] == "kernel")

    path = write(tmp_path, sorted_by_kind)
    whole = path.read_text()
    path.write_text(whole[: whole.rindex("void aten_linear_kernel")])
    trace = read_kineto(path)
    assert [step.complete for step in build_tree(trace).steps] == [True, True, False]
    assert trace.health.counts["K34"] == 4
    assert trace.health.exit_code == 3


def test_a_trace_without_steps_is_one_step(tmp_path: Path) -> None:
    found = [e for e in events() if not e["name"].startswith("ProfilerStep")][:5]
    trace = read_kineto(write(tmp_path, lambda _: found))
    assert [step.mark for step in build_tree(trace).steps] == ["trace"]


def test_no_rank_means_rank_zero(tmp_path: Path) -> None:
    assert read_kineto(write(tmp_path)).rank == 0
    assert read_kineto(write(tmp_path, distributedInfo={"rank": 3})).rank == 3


# rows 7 and 8: units and digits


def scaled(found: list[Event], factor: float) -> list[Event]:
    return [{**e, "ts": round(e["ts"] * factor), "dur": round(e["dur"] * factor)} for e in found]


def test_nanoseconds_since_1970_are_told_by_magnitude(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path, lambda found: scaled(found, 1000)))
    assert step_times(trace) == STEPS
    assert "nanoseconds" in trace.health.details["K07"]


def test_relative_nanoseconds_are_told_by_the_shortest_event(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        many = [{**e, "ts": e["ts"] - builder.START + 10} for e in found]
        return scaled(many * 2, 1000)

    trace = read_kineto(write(tmp_path, change))
    assert step_times(trace) == STEPS
    assert "nanoseconds" in trace.health.details["K07"]


@pytest.mark.parametrize("factor", [1, 1000])
def test_the_time_that_a_file_counts_from_tells_the_unit(tmp_path: Path, factor: int) -> None:
    """52 days after it in microseconds are 143 years in nanoseconds; calls may take under 200."""

    def change(found: list[Event]) -> list[Event]:
        later = [{**e, "ts": e["ts"] - builder.START + 4_530_161_339_224} for e in found]
        return scaled(later, factor)

    path = write(tmp_path, change, baseTimeNanoseconds=1_790_857_026 * 10**9)
    trace = read_kineto(path)
    assert step_times(trace) == STEPS
    assert ("nanoseconds" in trace.health.details.get("K07", "")) == (factor == 1000)


def test_single_fractions_do_not_make_whole_microseconds_nanoseconds(tmp_path: Path) -> None:
    """Times of a part with decimals are kept in thousandths, others as they are."""
    found = [{**e, "ts": e["ts"] - builder.START + 10} for e in events() * 2]
    trace = damaged(tmp_path, text(found).replace('"dur": 50,', '"dur": 50.5,', 1))
    assert "K07" not in trace.health.counts
    assert step_times(trace) == STEPS


def test_fractions_are_exact(tmp_path: Path) -> None:
    data = re.sub(r'"(ts|dur)": (\d+)', r'"\1": \2.123', text(events()))
    trace = damaged(tmp_path, data)
    assert "K08" in trace.health.counts
    assert trace.health.exit_code == 0
    first = next(trace.rows(EventKind.OP))
    assert int(trace.columns["start"][first]) == 10_000
    assert int(trace.columns["duration"][first]) == 50_123
    assert trace.base == builder.START * 1000 + 123


def test_single_fractions_among_whole_times_are_said(tmp_path: Path) -> None:
    trace = damaged(tmp_path, text(events()).replace('"dur": 1000', '"dur": 0.5', 1))
    assert trace.health.details["K09"] == "times with decimals among whole ones"


def test_a_step_that_is_gone_is_said(tmp_path: Path) -> None:
    data = text(events()).replace("ProfilerStep#6", "x")
    trace = damaged(tmp_path, data)
    build_tree(trace)
    assert trace.health.details["K30"] == "found 5, 7"


def test_work_outside_all_steps_is_said(tmp_path: Path) -> None:
    data = text(events()).replace("ProfilerStep#7", "x")
    trace = damaged(tmp_path, data)
    build_tree(trace)
    assert trace.health.details["K30"] == "4 outermost calls and 4 launches lie outside all steps"


@pytest.mark.parametrize(("written", "ns"), [("7.5", 7500), ("7.000001", 7000), ("8", 8000)])
def test_decimals_of_any_length(tmp_path: Path, written: str, ns: int) -> None:
    data = text(events()).replace('"dur": 100', f'"dur": {written}')
    trace = damaged(tmp_path, data)
    durations = trace.columns["duration"][trace.columns["kind"] == EventKind.KERNEL]
    assert set(durations.tolist()) == {ns}


# rows 9 and 10: impossible and zero times


def test_negative_kernel_takes_the_median_of_its_kind(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        kernels(found)[0]["dur"] = -5

    trace = read_kineto(write(tmp_path, change))
    assert "K09" in trace.health.counts
    durations = trace.columns["duration"][trace.columns["kind"] == EventKind.KERNEL]
    assert set(durations.tolist()) == {100_000}


@pytest.mark.parametrize("ts", [0, 10**14, 9 * 10**15])
def test_times_far_off_are_dropped(tmp_path: Path, ts: int) -> None:
    def change(found: list[Event]) -> None:
        kernels(found)[3]["ts"] = ts

    trace = read_kineto(write(tmp_path, change))
    assert "K09" in trace.health.counts
    assert step_times(trace) == STEPS
    assert len(trace) == len(events()) - 1


def test_times_as_text_are_read_and_counted(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found[1]["ts"] = str(found[1]["ts"])

    trace = read_kineto(write(tmp_path, change))
    assert len(trace) == len(events())
    assert trace.health.counts["K09"] == 1


def test_zero_durations_are_kept(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["cat"] == "cuda_runtime":
                event["dur"] = 0

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.counts["K10"] == 12
    assert int((build_tree(trace).launch >= 0).sum()) == 12


# rows 12, 13: overlap on a stream, clocks


def test_kernels_may_overlap_on_a_stream(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        kernels(found)[0]["dur"] = 200

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.counts["K12"] >= 1
    assert trace.health.exit_code == 3


def test_an_overlap_of_no_weight_is_a_note(tmp_path: Path) -> None:
    """Two kernels overlap by 2 us: no figure is in doubt unless that is much of the time."""

    def change(found: list[Event], length: int) -> list[Event]:
        other = kernels(found)
        for event in other[2:]:
            event["args"]["stream"] = 20 + other.index(event)
        other[-1]["dur"] = length
        other[0]["dur"] = other[1]["ts"] + 2 - other[0]["ts"]
        return found

    codes = {}
    for length in (100, 10_000):
        health = read_kineto(write(tmp_path, lambda found, n=length: change(found, n))).health
        codes[length] = (health.counts["K12"], "K12" in health.minor)
    assert codes == {100: (1, False), 10_000: (1, True)}


def test_waits_of_an_mtia_device_are_no_work(tmp_path: Path) -> None:
    names = ("event_wait", "dma_request", "fc-dtype_Float", "event_record")

    def change(found: list[Event]) -> None:
        for event, name in zip(kernels(found), names * 3, strict=True):
            event.update(cat="mtia_ccp_events", name=name)

    trace = read_kineto(write(tmp_path, change))
    assert "K17" not in trace.health.counts
    kinds = {
        trace.text(row): EventKind(int(trace.columns["kind"][row])) for row in range(len(trace))
    }
    assert [kinds[name] for name in names] == [
        EventKind.OTHER,
        EventKind.MEMCPY,
        EventKind.KERNEL,
        EventKind.OTHER,
    ]


def test_shifted_device_clock_is_set_right(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in kernels(found):
            event["ts"] -= 20_000

    trace = read_kineto(write(tmp_path, change))
    assert "ahead: shifted" in trace.health.details["K13"]
    tree = build_tree(trace)
    rows = np.flatnonzero(trace.on_device)
    starts = trace.columns["start"]
    assert (starts[rows] >= starts[tree.launch[rows]]).all()


def test_single_early_kernel_moves_to_its_launch(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        kernels(found)[5]["ts"] -= 150

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.counts["K13"] == 1
    assert "moved to their launch" in trace.health.details["K13"]


# rows 14, 15: launches


def test_orphans_are_counted_with_their_cause(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        kernels(found)[0]["args"]["correlation"] = 0
        del kernels(found)[1]["args"]["correlation"]
        kernels(found)[2]["args"]["correlation"] = 999

    detail = read_kineto(write(tmp_path, change)).health.details["K14"]
    assert "1 without correlation" in detail
    assert "1 launched before the recording" in detail
    assert "1 whose launch is not in the trace" in detail


def test_a_graph_launch_starts_many_kernels(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["args"].get("correlation", 0) in (1, 2, 4):
                event["args"]["correlation"] = 1
        dropped = [e for e in found if e["cat"] == "cuda_runtime" and e["ts"] > builder.START + 100]
        dropped = [e for e in dropped if e["args"]["correlation"] == 1]
        for event in dropped:
            found.remove(event)

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.details["K15"] == "up to 3 events each"
    assert int((build_tree(trace).launch >= 0).sum()) == 12


def test_calls_that_share_a_correlation(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found[2 + 3]["args"]["correlation"] = 1

    assert "K29" in read_kineto(write(tmp_path, change)).health.counts


# row 16: copies


def test_exact_copies_are_dropped(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path, lambda found: [*found, *found]))
    assert len(trace) == len(events())
    assert trace.health.counts["K16"] == len(events())


# rows 17, 18: names of categories and functions


@pytest.mark.parametrize("function", ["cuLaunchKernelEx", "hipExtModuleLaunchKernel", "launch2030"])
def test_launches_need_no_known_name(tmp_path: Path, function: str) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["cat"] == "cuda_runtime":
                event["name"] = function

    trace = read_kineto(write(tmp_path, change))
    assert int((build_tree(trace).op[trace.on_device] >= 0).sum()) == 12


def test_unknown_categories_go_by_their_ids(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        table = {"kernel": "npu_work", "cuda_runtime": "npu_calls"}
        for event in found:
            event["cat"] = table.get(event["cat"], event["cat"])

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.details["K17"] == "npu_calls, npu_work"
    assert int((build_tree(trace).launch >= 0).sum()) == 12


def test_categories_of_2021(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        table = {
            "kernel": "Kernel",
            "cuda_runtime": "Runtime",
            "cpu_op": "Operator",
            "user_annotation": "Operator",
        }
        for event in found:
            event["cat"] = table[event["cat"]]
            event["tid"] = str(event["tid"])
            if event["cat"] == "Kernel":
                event["tid"] = f"stream {event['tid']}"

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.details["K18"] == "Kernel, Operator, Runtime"
    assert step_times(trace) == STEPS


# rows 19, 20, 25, 27: what is missing


def test_missing_shapes_are_said(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            event["args"].pop("Input Dims", None)

    assert read_kineto(write(tmp_path, change)).health.counts["K20"] == 12


def test_profiler_work_is_set_apart(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found.append(host("overhead", "Activity Buffer Request", builder.START, 900))

    trace = read_kineto(write(tmp_path, change))
    assert trace.health.counts["K25"] == 1
    assert len(build_tree(trace).top_ops()) == 12


def test_host_only_trace_is_said(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path, lambda f: [e for e in f if e["cat"] != "kernel"]))
    assert "K27" in trace.health.counts


# row 28 and --strict


def test_same_columns_whatever_the_hash_seed(tmp_path: Path) -> None:
    path = write(tmp_path)
    code = (
        "import sys, hashlib; from irgraph.capture.kineto import read_kineto\n"
        "t = read_kineto(sys.argv[1]); h = hashlib.sha256(repr(t.names).encode())\n"
        "[h.update(t.columns[k].tobytes()) for k in t.columns]; print(h.hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


def test_strict_refuses_repairs(tmp_path: Path) -> None:
    whole = text(events())
    path = tmp_path / "trace.json"
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(IrgraphError, match="needs repairs") as caught:
        read_kineto(path, strict=True)
    assert caught.value.exit_code == 4
    assert "K01" in str(caught.value)


def test_strict_accepts_a_sound_trace(tmp_path: Path) -> None:
    assert step_times(read_kineto(write(tmp_path), strict=True)) == STEPS


def test_floats_of_nanoseconds_are_read(tmp_path: Path) -> None:
    """Tools that divide and multiply times write 1.7e+18, beyond microseconds since 1970."""

    def change(found: list[Event]) -> None:
        for event in found:
            event["ts"] = (event["ts"] + 1_700_000_000_000_000) * 1e3
            event["dur"] = event.get("dur", 0) * 1e3

    plain, floats = (
        read_kineto(write(tmp_path)),
        read_kineto(write(tmp_path, change, "floats.json")),
    )
    assert len(floats) == len(plain)
    assert np.array_equal(floats.columns["duration"], plain.columns["duration"])
    assert np.abs(floats.columns["start"] - plain.columns["start"]).max() <= 512
    assert "exact to 256 ns" in floats.health.details["K08"]


def test_work_without_a_correlation_belongs_to_the_operator_that_it_names(tmp_path: Path) -> None:
    """Its launch is unknown (K14), its operator, step and phase are not."""

    def change(found: list[Event]) -> None:
        for event in found:
            if event["cat"] == "kernel":
                event["args"]["External id"] = event["args"].pop("correlation")

    whole = build_tree(read_kineto(write(tmp_path, name="whole.json")))
    tree = build_tree(read_kineto(write(tmp_path, change)))
    work, launched = (np.flatnonzero(t.trace.on_device) for t in (tree, whole))
    assert (tree.launch[work] < 0).all()
    assert tree.trace.health.counts["K14"] == len(work)
    names = [
        [t.trace.text(int(t.top[row])) for row in rows]
        for t, rows in ((tree, work), (whole, launched))
    ]
    assert names[0] == names[1]
    for values, expected in ((tree.step, whole.step), (tree.phase, whole.phase)):
        assert values[work].tolist() == expected[launched].tolist()


def test_an_id_of_several_operators_names_none(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["cat"] == "kernel":
                event["args"]["External id"] = event["args"].pop("correlation")
            elif event["cat"] == "cpu_op":
                event["args"]["External id"] = 1

    tree = build_tree(read_kineto(write(tmp_path, change)))
    assert (tree.op[np.flatnonzero(tree.trace.on_device)] < 0).all()


def test_copies_that_rocm_records_as_kernels_are_copies(tmp_path: Path) -> None:
    names = ("__amd_rocclr_copyBufferAligned.kd", "MEMORY_COPY_HOST_TO_DEVICE",
             "__amd_rocclr_fillBufferAligned", "my__amd_rocclr_copyBuffer")  # fmt: skip

    def change(found: list[Event]) -> None:
        for event, name in zip(kernels(found), names * 3, strict=True):
            event["name"] = name

    trace = read_kineto(write(tmp_path, change))
    kinds = dict(
        zip(map(trace.text, range(len(trace))), trace.columns["kind"].tolist(), strict=True)
    )
    expected = [EventKind.MEMCPY, EventKind.MEMCPY, EventKind.MEMSET, EventKind.KERNEL]
    assert [kinds[name] for name in names] == expected
