"""``irgraph evaluate steps`` and ``gains``: programs that others timed, before and after."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodels.evaluate.errors import Coverage, IntervalHit, coverage
from costmodels.evaluate.whole import gains, programs, steps
from costmodels.evaluate.whole.gains import evaluate_gains
from costmodels.evaluate.whole.program_cache import folder_for
from costmodels.evaluate.whole.programs import as_cuda_graph, bags, dlrm_inference
from costmodels.evaluate.whole.steps import evaluate_steps, kind
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.language import load_pass, run
from irgraph.predict.prediction import predict
from irgraph.predict.validation import SIMILAR
from irgraph.text import parse

TIMM = "model,phase,batch,image,layout,precision,compiled,gpu,torch,cuda,step_ms,samples_per_s"
EXAMPLES = "model,variant,phase,gpu,gpus,precision,quantity,value"
CONFIGS = "model,system,precision,batch_per_gpu,layout,optimizer_batch,image"
GRAPHS = "case,gpu,precision,batch,ms_graphs_off,ms_graphs_on,gain"
LAYOUTS = "change,model,phase,image,gpu,torch,batch_before,batch_after,gain,same_batch"
BAGS = "case,tables,rows,dim,gain"

CLASSIFIER = """model "m" {{ format = 1 }}
input %x : f16[8, 32, 14, 14] in $x
param %w : f16[32, {channels}, 3, 3] in $w

%y = aten.convolution(%x, %w, none, [1, 1], [1, 1], [1, 1], false, [0, 0], {groups}) : f16[8, 32, 14, 14] in $y
"""  # noqa: E501


def made(groups: int) -> Graph:
    return parse(CLASSIFIER.format(channels=32 // groups, groups=groups))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what writes rows below the headers of tables of steps."""
    monkeypatch.setenv("IRGRAPH_DATA", str(tmp_path))
    (tmp_path / "steps").mkdir()
    heads = {
        "timm_steps.csv.gz": f"{TIMM},consistent",
        "nvidia_examples.csv": EXAMPLES,
        "nvidia_convnets_config.csv": CONFIGS,
        "nvidia_dlrm_cudagraph_gains.csv": GRAPHS,
        "torchrec_ebc.csv": BAGS,
        "timm_gains.csv.gz": LAYOUTS,
    }

    def write(**tables: list[str]) -> None:
        for name, head in heads.items():
            text = "\n".join([head, *tables.get(name.partition(".")[0], [])]) + "\n"
            packed = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
            (tmp_path / "steps" / name).write_bytes(packed)

    return write


NVIDIA = {
    "nvidia_examples": [
        "ConvNets/resnet50v1.5,,train,V100-16GB,1,FP32,throughput,100",
        "ConvNets/resnet50v1.5,,train,V100-16GB,1,AMP,throughput,300",
        "ConvNets/resnet50v1.5,,infer,V100-16GB,1,AMP,throughput,300",
        "GNMT,,train,V100-16GB,1,AMP,throughput,300",
    ],
    "nvidia_convnets_config": [
        "resnet50,DGX1V-16G,FP32,112,nchw,896,224",
        "resnet50,DGX1V-16G,AMP,256,nhwc,2048,224",
    ],
}


def test_a_classifier_s_kind_is_that_of_its_convolutions() -> None:
    found = [kind(made(groups)) for groups in (32, 4)]
    assert found == ["depthwise convolutions", "grouped convolutions"]
    assert kind(made(1)) == "attention, products"  # a single one, as before attention


def test_steps_are_compared_by_group_and_what_cannot_be_is_said(
    folder: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "64,224,nchw,autocast-f16,eager,RTX-3090,1.12,11.3,10,6400"
    rows = [f"one,train,{settings},1", f"two,train,{settings},1", f"odd,train,{settings},0"]
    folder(timm_steps=[*rows, f"one,infer,{settings},1"], **NVIDIA)

    def classifier(name: str, *_: int, **__: bool) -> Graph:
        if name == "two":
            raise programs.fail("timm has no model 'two'")
        return made(32)

    monkeypatch.setattr(steps, "classifier", classifier)
    found = evaluate_steps().as_json()
    groups = {name: part["points"] for name, part in found["quantities"].items()}
    assert {name: len(points) for name, points in groups.items()} == {
        "NVIDIA's classifiers, V100, AMP": 1,
        "NVIDIA's classifiers, V100, FP32": 1,
        "timm, train, RTX-3090: depthwise convolutions": 1,
    }
    (full,) = groups["NVIDIA's classifiers, V100, FP32"]
    assert full["measured_ms"] == pytest.approx(1120.0)
    notes = "\n".join(found["notes"])
    assert "left out: two, B = 64, 224 pixels: timm has no model 'two'" in notes
    held = {group["group"]: (group["cases"], group["inside"]) for group in found["intervals"]}
    assert held == dict.fromkeys(groups, (1, 0)) | {"all": (3, 0)}


def test_as_many_models_as_asked_are_captured_once(
    folder: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = "64,224,nchw,autocast-f16,eager,RTX-3090,1.12,11.3,10,6400,1"
    folder(timm_steps=[f"{name},train,{settings}" for name in ("one", "two", "three")])
    asked: list[str] = []

    def classifier(name: str, *_: int, **__: bool) -> Graph:
        asked.append(name)
        return made(32)

    monkeypatch.setattr(steps, "classifier", classifier)
    keep = folder_for(str(tmp_path / "kept"))
    first, again = (evaluate_steps(2, keep).as_json() for _ in range(2))
    assert len(asked) == 2 and first == again
    assert len(list((tmp_path / "kept").glob("*.ir"))) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(IrgraphError, match="--keep: File exists"):
        folder_for(str(tmp_path / "file"))


def test_coverage_counts_groups_and_all() -> None:
    held = {
        "b": [IntervalHit(True, 0.2), IntervalHit(False, 0.4)],
        "a": [IntervalHit(True, 0.1)],
        "none": [],
    }
    assert coverage(held) == (
        Coverage("a", 1, 1, 0.1),
        Coverage("b", 2, 1, pytest.approx(0.3)),
        Coverage("all", 3, 2, 0.2),
    )
    assert [one.share for one in coverage({"b": held["b"]})] == [0.5]


def test_one_card_that_eight_contradict_is_left_out(folder: Callable[..., None]) -> None:
    rows = ["x,efficientnet-b4,train,V100-32GB,1,FP32,throughput,36"]
    sure = ["x,efficientnet-b0,train,V100-32GB,1,FP32,throughput,600"]
    folder(
        nvidia_examples=[
            *rows,
            *sure,
            "x,efficientnet-b4,train,V100-32GB,8,FP32,throughput,641",
            "x,efficientnet-b0,train,V100-32GB,8,FP32,throughput,4800",
        ],
        nvidia_convnets_config=[
            "efficientnet-b4,DGX1V-32G,FP32,32,nchw,4096,380",
            "efficientnet-b0,DGX1V-32G,FP32,32,nchw,4096,224",
        ],
    )
    place = steps.measurements() / "steps"
    assert [case.name for case in steps.nvidia(place)] == ["efficientnet-b0, V100-32GB, B = 32"]
    (said,) = steps.contradictions(place)
    assert said.startswith("efficientnet-b4, V100-32GB, FP32: ")
    assert "17.8 times" in said


@pytest.mark.long
@pytest.mark.slow
def test_gains_are_times_before_over_times_after(
    folder: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(
        torchrec_ebc=["scaling-10-4-8,10,4,8,2.5", "scaling-10-4-16,10,4,16,3.5"],
        nvidia_dlrm_cudagraph_gains=[
            "x,1x V100 32GB,FP32,64,0.5,0.2,2.5",
            "x,1x A100 80GB,TF32,64,0.5,0.2,2.5",
        ],
        timm_gains=[
            "channels_last,one,train,224,RTX-3090,1.12,64,64,1.5,1",
            "channels_last,two,train,224,RTX-3090,1.12,64,32,1.5,0",
            "torch.compile,three,train,224,RTX-3090,1.12,64,64,1.5,1",
        ],
        **NVIDIA,
    )
    monkeypatch.setattr(gains, "EQUAL_TABLE_COUNTS", (10,))
    monkeypatch.setattr(steps, "classifier", lambda *_, **__: made(1))
    layouts = {False: made(1), True: made(32)}
    monkeypatch.setattr(gains, "classifier", lambda *_, **asked: layouts[asked["channels_last"]])
    found = evaluate_gains().as_json()
    points = {p["workload"]: p for part in found["quantities"].values() for p in part["points"]}
    mixed = points["resnet50, V100-16GB, FP32 to AMP"]
    assert mixed["measured_x"] == pytest.approx(3.0)
    assert mixed["predicted_x"] == pytest.approx(256 / 112)  # one program stands for both
    assert points["10 equal tables"]["measured_x"] == 3.0
    assert points["10 equal tables"]["predicted_x"] > 2
    assert points["V100 32GB, FP32, B = 64"]["predicted_x"] > 1.5
    assert points["A100 80GB, TF32, B = 64"]["predicted_x"] > 1.5
    steps_of = (predict(layouts[last], "rtx-3090", host=gains.HOST) for last in (False, True))
    before, after = (prediction.step_time for prediction in steps_of)
    assert points["one, B = 64"]["measured_x"] == 1.5
    assert points["one, B = 64"]["predicted_x"] == pytest.approx(before / after)
    assert before != after and "two, B = 64" not in points and "three, B = 64" not in points


@pytest.mark.slow
def test_a_cuda_graph_is_one_launch_of_the_same_kernels() -> None:
    eager = dlrm_inference(64, half=False)
    once = as_cuda_graph(eager)
    before, after = (predict(graph, "v100") for graph in (eager, once))
    assert after.timeline.active_time == pytest.approx(before.timeline.active_time, rel=0.05)
    assert after.step_time < before.step_time / 1.5


@pytest.mark.slow
def test_nvidia_s_dlrm_calls_one_op_for_each_mlp_and_for_the_products() -> None:
    ops = dlrm_inference(64, half=False).ops
    assert [op.name for op in ops if op.name.startswith("nvidia.")] == [
        "nvidia.bottom",
        "nvidia.dot",
        "nvidia.top",
    ]
    linear = [inner.name for op in ops for inner in op.body].count("aten.linear")
    assert linear == 3 + 4


def test_bags_are_taken_apart_as_torchrec_does() -> None:
    names = [op.name for op in bags((100, 100, 100), 16, keep_gradients=True).ops]
    assert names.count(f"fbgemm.{programs.CUMSUM}") == 3
    joined = [
        op.name for op in bags((100, 100, 100), 16, keep_gradients=False, rejoin_inputs=True).ops
    ]
    assert joined.count(f"fbgemm.{programs.CUMSUM}") == 4
    assert joined.count("aten.cat") == names.count("aten.cat") + 2


def test_bags_are_fused_with_their_update_where_gradients_are_given_up() -> None:
    outcome = run(load_pass("fuse-embedding"), bags((100, 100), 16, keep_gradients=False))
    assert "irgraph.batched_embedding_sgd" in {op.name for op in outcome.graph.ops}
    kept = bags((100, 100), 16, keep_gradients=True)
    assert "irgraph.batched_embedding_sgd" not in {
        op.name for op in run(load_pass("fuse-embedding"), kept).graph.ops
    }


def test_a_model_that_timm_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(programs, "import_module", lacking)
    found = programs.result_or_reason(lambda: programs.classifier("resnet50", 2, 32))
    assert found == "image classifiers need timm: No module named 'timm'"


def test_programs_of_torchvision_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(IrgraphError, match="image classifiers need torchvision"):
        programs.import_with_torchvision("torchvision")


@pytest.mark.data
@pytest.mark.slow
def test_what_reports_say_of_fused_bags_is_what_is_evaluated(data_dir: Path) -> None:
    pairs = [p for p in gains._bags(data_dir / "steps") if p.name.startswith("DLRM")]
    measured, predicted = zip(*((p.gain, gains._gain(p)) for p in pairs), strict=True)
    assert "{:.1f} and {:.1f} times as fast".format(*measured) in SIMILAR[gains.FUSED]
    assert "predicted {:.1f} and {:.1f}".format(*predicted) in SIMILAR[gains.FUSED]
