"""Analyses of made-up and of published traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from irgraph.analyze import Analysis, analyze
from irgraph.analyze.collectives import _members
from irgraph.analyze.plots import draw_overheads
from irgraph.capture.kineto import EventKind, read_kineto
from irgraph.capture.kineto.events.families import family_of
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.overheads import load_host
from irgraph.text import IrgraphError
from tests.capture.kineto.builder import START, Event, host, kernel, write


def tree(folder: Path, change: Callable[[list[Event]], Any] | None = None, **header: Any) -> Tree:
    name = f"{header.get('distributedInfo', {}).get('rank', 0)}.json"
    return build_tree(read_kineto(write(folder, change, name, **header)))


def collective(start: int, duration: int) -> Callable[[list[Event]], None]:
    """Make the second kernel of the first step a collective."""

    def change(found: list[Event]) -> None:
        kernels = [e for e in found if e["cat"] == "kernel" and e["ts"] < START + 1000]
        kernels[1].update(name="ncclDevKernel_AllReduce_Sum", ts=START + start, dur=duration)
        kernels[1]["args"]["stream"] = 20

    return change


def test_figures_of_a_step(tmp_path: Path) -> None:
    step = analyze([tree(tmp_path)]).steps[0]
    assert (step.time, step.active, step.idle) == (1000.0, 400.0, 600.0)
    assert (step.compute, step.communication, step.exposed) == (400.0, 0.0, 0.0)


def test_exposed_communication(tmp_path: Path) -> None:
    # the first kernel runs from 110 to 210
    step = analyze([tree(tmp_path, collective(160 + 70, 100))]).steps[0]
    assert (step.communication, step.overlapped, step.exposed) == (100.0, 0.0, 100.0)
    later = analyze([tree(tmp_path, collective(230, 300))]).steps[0]
    assert later.communication == 300.0
    assert later.overlapped == pytest.approx(60.0, abs=60.0)
    assert later.active == later.compute + later.exposed


def test_breakdowns_add_up(tmp_path: Path) -> None:
    found = analyze([tree(tmp_path)])
    for by in ("op", "kernel", "family", "phase", "module"):
        assert sum(us for us, _ in found.breakdowns[by].values()) == pytest.approx(400.0)
    assert found.breakdowns["phase"] == {"forward": (300.0, 3.0), "backward": (100.0, 1.0)}


def test_work_launched_before_the_recording_is_a_line_of_breakdowns(tmp_path: Path) -> None:
    """A kernel of 150 us, launched before the trace, of which 90 us lie within the first step."""

    def change(found: list[Event]) -> None:
        for event in found:
            if "correlation" in event["args"]:
                event["args"]["correlation"] += 100
        found.append(kernel("earlier", START - 60, 150, 5, stream=9))

    plain, analysis = (analyze([tree(tmp_path, c)]) for c in (None, change))
    for grouping, rows in analysis.breakdowns.items():
        time, count = rows.get("(launched before the recording)", (0.0, 0.0))
        assert (time, count) == (pytest.approx(90 / 3), pytest.approx(1 / 3)), grouping
        total = sum(time for time, _ in plain.breakdowns[grouping].values())
        assert sum(time for time, _ in rows.values()) == pytest.approx(total + 90 / 3)


def test_idle_causes_add_up(tmp_path: Path) -> None:
    assert sum(analyze([tree(tmp_path)]).idle.values()) == pytest.approx(600.0, abs=0.5)


def steps(count: int) -> Callable[[list[Event]], list[Event]]:
    """Repeat the steps until there are so many."""

    def change(found: list[Event]) -> list[Event]:
        first = [e for e in found if e["ts"] < START + 1010]
        every: list[Event] = []
        for step in range(count):
            for event in first:
                args = {k: v + 10 * step if k in NUMBERED else v for k, v in event["args"].items()}
                name = event["name"].replace("#5", f"#{step}")
                every.append({**event, "name": name, "ts": event["ts"] + 1010 * step, "args": args})
        return every

    return change


NUMBERED = ("correlation", "External id", "Sequence number")


def elements_touched(folder: Path, count: int, watched: pytest.MonkeyPatch) -> int:
    """Return how many elements numpy sorts, unites or searches in an analysis of so many steps."""
    analysed = tree(folder, steps(count))
    touched = 0

    def count_all(module: object, name: str) -> None:
        function = getattr(module, name)

        def counting(*given: Any, **more: Any) -> Any:
            nonlocal touched
            touched += max(np.size(value) for value in given)
            return function(*given, **more)

        watched.setattr(module, name, counting)

    for name in ("isin", "sort", "clip", "flatnonzero", "argsort", "lexsort"):
        count_all(np, name)
    found = analyze([analysed])
    build_tree(analysed.trace)
    watched.undo()
    assert len(found.steps) == count and found.covered == pytest.approx(1.0)
    assert sum(found.idle.values()) == pytest.approx(600.0, abs=0.5)
    return touched


def test_the_work_grows_with_the_steps_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (elements_touched(tmp_path, count, monkeypatch) for count in (16, 64))
    assert many < 5 * few


def test_data_loading_is_a_cause_of_idle_time(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def change(found: list[Event]) -> None:
        for step in range(3):
            at = START + step * 1010 + 900
            found.append(host("user_annotation", name, at, 50))

    idle = analyze([tree(tmp_path, change)]).idle
    assert idle["loader: in the program's data loader"] == pytest.approx(50.0)
    assert sum(idle.values()) == pytest.approx(600.0, abs=0.5)


def test_module_paths_reach_backward(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["name"] == "aten::linear":
                event["args"]["Module Hierarchy"] = "top.0"

    rows = analyze([tree(tmp_path, change)]).breakdowns["module"]
    assert rows == {"top.0": (200.0, 2.0), "(no module)": (200.0, 2.0)}


def test_ranks_of_a_long_group_that_torch_shortened_are_matched() -> None:
    assert _members("0 [0, 8, ..., 56, 64]", (0, 1, 8, 64)) == {0, 8, 64}
    assert _members("0", (0, 1)) == {0, 1}


def test_waiting_is_told_from_transfer(tmp_path: Path) -> None:
    trees = [
        tree(tmp_path, collective(230, duration), distributedInfo={"rank": rank})
        for rank, duration in enumerate((150, 50))
    ]
    (row,) = analyze(trees).collectives
    assert row["collective"] == "all_reduce"
    assert (row["transfer_us"], row["waiting_max_us"], row["last_rank"]) == (50.0, 100.0, 1)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ncclDevKernel_SendRecv(ncclDevComm*)", "communication"),
        ("volta_sgemm_128x32_nn", "gemm"),
        ("void cudnn::bn_fw_tr_1C11", "normalization"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
        ("void split_embedding_codegen_forward", "embedding"),
        ("triton_red_fused", "compiled"),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, "
            "128, 4, false, false, cutlass::bfloat16_t>>",
            "attention",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>",
            "attention",
        ),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", "attention"),
        ("_attn_fwd", "attention"),
        ("attn_fwd", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<>", "attention"),
        ("FmhaBatchPrefillKernel", "attention"),
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>", "normalization"),
        ("nvjet_hsh_192x192_64x4_1x2_h_bz_coopB_TNT", "gemm"),
        ("nvjet_tst_64x24_64x16_4x1_v_bz_splitK_bias_TNT", "gemm"),
        ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x512u2_s6_et64x8_m64x8x32", "gemm"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", "gemm"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128", "gemm"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "gemm"),
        ("void marlin::Marlin<256, 4, 16, 4, 4, 8>", "gemm"),
        ("fused_moe_kernel", "gemm"),
        ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1", "gemm"),
        ("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "convolution"),
        ("volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1", "convolution"),
        ("igemm_fwd_gtcx_nhwc_fp16_bx0_ex1", "convolution"),
        ("void nchwToNhwcKernel<float, float>", "layout"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "normalization"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "communication"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "communication"),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_bf16", "communication"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "elementwise"),
        ("void vllm::scaled_fp8_quant_kernel<c10::BFloat16>", "elementwise"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "indexing"),
        ("void cunn_ClassNLLCriterion_updateOutput_kernel<float>", "loss"),
        ("void fft2d_r2c_32x32<float, false, 1u, false>", "fft"),
        ("what", "other"),
    ],
)
def test_families(name: str, family: str) -> None:
    assert family_of(name, EventKind.KERNEL) == family


def test_copies_go_by_kind() -> None:
    assert family_of("Memcpy HtoD", EventKind.MEMCPY) == "copy"
    assert family_of("Memset (Device)", EventKind.MEMSET) == "fill"


def test_a_plot_shows_steps_idle_time_and_work(
    tmp_path: Path, drawn: list[str], golden: Callable[[str, str], None]
) -> None:
    analyze([tree(tmp_path)]).plot().save(str(tmp_path / "plot.png"))
    golden("plots/analysis.txt", drawn[0])


def test_a_plot_of_communication_names_it(
    tmp_path: Path, drawn: list[str], golden: Callable[[str, str], None]
) -> None:
    analyze([tree(tmp_path, collective(230, 300))]).plot().save(str(tmp_path / "plot.png"))
    golden("plots/communication.txt", drawn[0])


def test_many_steps_are_not_labelled_one_by_one(tmp_path: Path, drawn: list[str]) -> None:
    found = analyze([tree(tmp_path)])
    many = replace(found, steps=[replace(found.steps[0], step=n) for n in range(38)])
    many.plot().save(str(tmp_path / "plot.svg"))
    assert drawn[0].count("40%") == 1
    assert "x names: 0 | 4 | 8 | 12 | 16 | 20 | 24 | 28 | 32 | 36\n" in drawn[0]


def test_without_device_events_there_is_nothing_to_draw(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        return [event for event in found if event["cat"] != "kernel"]

    with pytest.raises(IrgraphError, match="no step with device events to draw"):
        analyze([tree(tmp_path, change)]).plot()


def test_overheads_are_drawn(
    tmp_path: Path, drawn: list[str], golden: Callable[[str, str], None]
) -> None:
    draw_overheads(load_host("v100").file, str(tmp_path / "o.svg"))
    golden("plots/overheads.txt", drawn[0])


def test_values_are_plain(tmp_path: Path) -> None:
    found = analyze([tree(tmp_path)]).as_json()
    assert json.loads(json.dumps(found)) == found
    assert found["orphans"]["attributed"] == 12


# published traces


@pytest.fixture(scope="module")
def dlrm(data_dir: Path) -> Analysis:
    folder = data_dir / "traces" / "dlrm_8xV100"
    paths = [folder / f"kineto_rank{rank}.json.gz" for rank in range(8)]
    return analyze([build_tree(read_kineto(path)) for path in paths])


@pytest.mark.data
def test_dlrm_is_bound_by_the_host(dlrm: Analysis) -> None:
    assert all(1050 <= step.compute + step.copies <= 1280 for step in dlrm.steps)
    assert all(0 < step.copies < 100 for step in dlrm.steps)
    assert all(1700 <= step.communication <= 11_400 for step in dlrm.steps)
    assert all(7500 <= step.idle <= 10_600 for step in dlrm.steps)


@pytest.mark.data
def test_dlrm_collectives_mostly_wait(dlrm: Analysis) -> None:
    transfer = sum(row["transfer_us"] for row in dlrm.collectives)
    waiting = sum(row["waiting_mean_us"] for row in dlrm.collectives)
    assert waiting > 10 * transfer


@pytest.mark.data
def test_every_device_event_is_accounted_for(data_dir: Path) -> None:
    for path in sorted((data_dir / "traces").glob("*/kineto*.json.gz")):
        found = build_tree(read_kineto(path))
        events = int(found.trace.on_device.sum())
        if events:
            assert sum(analyze([found]).orphans.values()) == events
            orphans = found.trace.health.counts.get("K14", 0)
            assert int((found.launch[found.trace.on_device] < 0).sum()) == orphans
