"""ONNX models, made by hand and by torch, as graphs of torch's ops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from irgraph.capture.common.result import Capture
from irgraph.capture.onnx.lower import lower_onnx
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.ir.schema import resolve
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph

NEWEST = onnx.defs.onnx_opset_version()
F32 = TensorProto.FLOAT

Shape = Sequence[int | str]


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: dict[str, Shape],
    outputs: Sequence[str],
    weights: dict[str, Any] | None = None,
    opset: int = 17,
) -> Path:
    """Write a model; constants are given as arrays, large ones are made of zeros."""
    made = {
        n: a if isinstance(a, np.ndarray) else np.zeros(a, np.float32)
        for n, a in (weights or {}).items()
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, F32, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in made.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("other", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


def sound(captured: Capture) -> Graph:
    """Return the graph after holding it against all that every graph must be."""
    graph = captured.graph
    assert verify(graph) == []
    assert parse(print_graph(graph)) == graph
    for op in graph.walk():
        if op.name.startswith("aten."):
            assert resolve(op) is not None, print_graph(graph)
    return graph


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


CASES: dict[str, tuple[list[Any], dict[str, Any], str, tuple[int, ...]]] = {
    "relu": ([("Relu", "x", {})], {}, "aten.relu", (4, 6, 8, 8)),
    "elu": ([("Elu", "x", {"alpha": 0.5})], {}, "aten.elu", (4, 6, 8, 8)),
    "add number": ([("Add", "x c", {})], {"c": np.float32(2)}, "aten.add", (4, 6, 8, 8)),
    "number minus": ([("Sub", "c x", {})], {"c": np.float32(2)}, "aten.rsub", (4, 6, 8, 8)),
    "number over": ([("Div", "c x", {})], {"c": np.float32(2)}, "aten.div", (4, 6, 8, 8)),
    "power": ([("Pow", "x c", {})], {"c": np.float32(2)}, "aten.pow", (4, 6, 8, 8)),
    "max": ([("Max", "x x x", {})], {}, "aten.maximum", (4, 6, 8, 8)),
    "clip": ([("Clip", "x a b", {})], {"a": np.float32(0), "b": np.float32(6)}, "aten.clamp",
             (4, 6, 8, 8)),
    "cast": ([("Cast", "x", {"to": TensorProto.FLOAT16})], {}, "aten.to", (4, 6, 8, 8)),
    "mean": ([("ReduceMean", "x", {"axes": [2, 3]})], {}, "aten.mean", (4, 6, 1, 1)),
    "sum": ([("ReduceSum", "x a", {"keepdims": 0})], {"a": ints(1)}, "aten.sum", (4, 8, 8)),
    "prod": ([("ReduceProd", "x", {"axes": [1, 2], "keepdims": 0})], {}, "aten.prod", (4, 8)),
    "argmax": ([("ArgMax", "x", {"axis": 1, "keepdims": 0})], {}, "aten.argmax", (4, 8, 8)),
    "softmax": ([("Softmax", "x", {})], {}, "aten.softmax", (4, 6, 8, 8)),
    "matmul": ([("MatMul", "x w", {})], {"w": (8, 5)}, "aten.matmul", (4, 6, 8, 5)),
    "conv": ([("Conv", "x w", {"auto_pad": "SAME_UPPER", "strides": [2, 2]})], {"w": (9, 6, 4, 4)},
             "aten.conv2d", (4, 9, 4, 4)),
    "odd padding": ([("Conv", "x w", {"pads": [0, 0, 1, 1]})], {"w": (9, 6, 2, 2)},
                    "aten.pad", (4, 9, 8, 8)),
    "deconv": ([("ConvTranspose", "x w", {"strides": [2, 2]})], {"w": (6, 3, 2, 2)},
               "aten.conv_transpose2d", (4, 3, 16, 16)),
    "average": ([("AveragePool", "x", {"kernel_shape": [2, 2], "strides": [2, 2]})], {},
                "aten.avg_pool2d", (4, 6, 4, 4)),
    "global": ([("GlobalAveragePool", "x", {})], {}, "aten.mean", (4, 6, 1, 1)),
    "layer norm": ([("LayerNormalization", "x s b", {"axis": -1})], {"s": (8,), "b": (8,)},
                   "aten.layer_norm", (4, 6, 8, 8)),
    "instance norm": ([("InstanceNormalization", "x s s", {})], {"s": (6,)},
                      "aten.instance_norm", (4, 6, 8, 8)),
    "transpose": ([("Transpose", "x", {"perm": [0, 2, 3, 1]})], {}, "aten.permute", (4, 8, 8, 6)),
    "slice": ([("Slice", "x a b c d", {})],
              {"a": ints(1, 0), "b": ints(99, 6), "c": ints(1, 3), "d": ints(1, 2)},
              "aten.slice", (4, 5, 8, 3)),
    "select": ([("Gather", "x i", {"axis": 1})], {"i": np.array(2)}, "aten.select", (4, 8, 8)),
    "index": ([("Gather", "x i", {"axis": 1})], {"i": ints(2, 0)}, "aten.index_select",
              (4, 2, 8, 8)),
    "concat": ([("Concat", "x x", {"axis": 1})], {}, "aten.cat", (4, 12, 8, 8)),
    "pad": ([("Pad", "x p", {})], {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}, "aten.pad",
            (4, 6, 10, 10)),
    "tile": ([("Tile", "x r", {})], {"r": ints(1, 2, 1, 1)}, "aten.repeat", (4, 12, 8, 8)),
    "expand": ([("Expand", "x e", {})], {"e": ints(3, 1, 1, 1, 1)}, "aten.expand",
               (3, 4, 6, 8, 8)),
    "resize": ([("Resize", "x  s", {"mode": "nearest"})],
               {"s": np.array([1, 1, 2, 2], np.float32)}, "aten.upsample_nearest2d",
               (4, 6, 16, 16)),
    "triangle": ([("Trilu", "x", {"upper": 0})], {}, "aten.tril", (4, 6, 8, 8)),
    "where": ([("Greater", "x c", {}), ("Where", "y1 x x", {})], {"c": np.float32(0)}, "aten.where",
              (4, 6, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_operator_becomes_an_op_that_torch_and_the_cost_models_know(
    case: str, tmp_path: Path
) -> None:
    steps, weights, name, shape = CASES[case]
    given = {key: np.asarray(v) if not isinstance(v, tuple) else v for key, v in weights.items()}
    nodes = [
        helper.make_node(op, inputs.split(" "), ["y" if i == len(steps) - 1 else f"y{i + 1}"], **a)
        for i, (op, inputs, a) in enumerate(steps)
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (4, 6, 8, 8)}, ["y"], given)
    captured = lower_onnx(path)
    graph = sound(captured)
    assert [note for note in captured.notes if "are not kept" not in note] == []
    assert name in [op.name for op in graph.ops]
    assert graph.ops[-1].outputs[0].shape == shape
    assert not predict(graph).priced.unknown


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_all_opsets_from_7_on_are_read(opset: int, tmp_path: Path) -> None:
    axes = {"axes": [1]} if opset < 18 else {}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="/fc/Gemm", transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("ReduceMean", ["r", *([] if axes else ["a"])], ["y"], **axes),
    ]
    weights = {"w": (300, 64), "b": (300,), **({} if axes else {"a": ints(1)})}
    path = write(tmp_path / "m.onnx", nodes, {"x": (32, 64)}, ["y"], weights, opset)
    graph = sound(lower_onnx(path))
    assert [op.name for op in graph.ops] == ["aten.linear", "aten.relu", "aten.mean"]
    assert [op.name for op in graph.ops[0].body] == ["aten.t", "aten.addmm"]
    assert graph.ops[0].module == "fc"
    assert [(d.role, d.label) for d in graph.tensors] == [
        ("input", ""),
        ("param", "w"),
        ("param", "b"),
    ]


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({}, ["aten.mm"]),
        ({"alpha": 0.5}, ["aten.mm", "aten.mul"]),
        ({"transB": 1}, ["aten.linear"]),
        ({"transB": 1, "alpha": 0.5}, ["aten.t", "aten.mm", "aten.mul"]),
        ({"transA": 1}, ["aten.t", "aten.mm"]),
    ],
)
def test_products_in_all_their_forms(
    attributes: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], **attributes)]
    path = write(tmp_path / "m.onnx", nodes, {"x": (8, 8)}, ["y"], {"w": (8, 8)})
    assert [op.name for op in sound(lower_onnx(path)).ops] == names


def test_batches_of_matrices_multiply_as_one_product(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (2, 3, 4, 8)}, ["y"], {"w": (4, 5)})
    _, scores, product = sound(lower_onnx(path)).ops
    assert [op.base for op in scores.body] == [
        "expand",
        "reshape",
        "expand",
        "reshape",
        "bmm",
        "_unsafe_view",
    ]
    assert scores.body[3].outputs[0].strides == (32, 1, 8)
    assert [op.base for op in product.body] == ["reshape", "mm", "_unsafe_view"]


def test_open_dimensions_are_given_and_stay_dimensions(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    weights = {"zero": ints(0), "rest": ints(-1), "w": (48, 7)}
    path = write(tmp_path / "m.onnx", nodes, {"x": ("batch", 6, 8)}, ["z"], weights)
    graph = sound(lower_onnx(path, dims={"batch": 32}))
    assert [op.name for op in graph.ops] == ["aten.reshape", "aten.matmul"]
    assert graph.dims == {"batch": 32}
    assert with_dims(graph, {"batch": 5}) == sound(lower_onnx(path, dims={"batch": 5}))


@pytest.mark.parametrize(
    ("dims", "code", "message"),
    [
        ({}, 2, "the model leaves batch open"),
        ({"batsh": 3}, 2, "no open dimension 'batsh'; did you mean 'batch'?"),
    ],
)
def test_what_is_wrong_with_dimensions_is_said(
    dims: dict[str, int], code: int, message: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": ("batch", 8)}, ["y"])
    with pytest.raises(IrgraphError) as caught:
        lower_onnx(path, dims=dims)
    assert message in str(caught.value)
    assert caught.value.exit_code == code


def test_weights_whose_values_are_left_out_are_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    given = {"w": np.ones((8, 9), np.float32)}
    notes = lower_onnx(write(tmp_path / "m.onnx", nodes, {"x": (4, 8)}, ["y"], given)).notes
    assert notes[0].startswith("the values of 1 weight are not kept: execution draws others")


def test_operators_without_counterpart_are_listed_not_dropped(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GlobalLpPool", ["x"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    captured = lower_onnx(write(tmp_path / "m.onnx", nodes, {"x": (4, 8)}, ["y"]))
    assert [op.name for op in sound(captured).ops] == ["onnx.GlobalLpPool", "aten.relu"]
    (note,) = captured.notes
    assert note.startswith("nothing in torch stands for GlobalLpPool (h): ")
    assert [op.name for op in predict(captured.graph).priced.unknown] == ["onnx.GlobalLpPool"]


def test_a_shape_that_depends_on_data_is_refused_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (4, 8)}, ["y"])
    with pytest.raises(IrgraphError, match=r"NonZero \(y\) cannot be lowered"):
        lower_onnx(path)


def test_old_opsets_and_other_files_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    old = write(tmp_path / "old.onnx", nodes, {"x": (4, 8)}, ["y"], opset=6)
    with pytest.raises(IrgraphError, match="opset 6 is too old"):
        lower_onnx(old)
    other = tmp_path / "other.onnx"
    other.write_bytes(b"\x00\x01 no model at all")
    with pytest.raises(IrgraphError, match="not an ONNX model"):
        lower_onnx(other)
    with pytest.raises(IrgraphError, match="No such file"):
        lower_onnx(tmp_path / "missing.onnx")


def test_weights_in_other_files_need_not_be_there(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (8, 128)}, ["y"], {"w": (128, 128)})
    external = tmp_path / "external.onnx"
    onnx.save_model(
        onnx.load(path), external, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    whole = sound(lower_onnx(external))
    (tmp_path / "w.bin").unlink()
    assert sound(lower_onnx(external)) == whole


def test_small_values_in_other_files_are_read(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (8, 128)}, ["y"], {"to": ints(16, 64)})
    external = tmp_path / "external.onnx"
    onnx.save_model(
        onnx.load(path),
        external,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    assert sound(lower_onnx(external)).ops[-1].outputs[0].shape == (16, 64)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(IrgraphError, match="the content of 'to' cannot be read"):
        lower_onnx(external)


def test_functions_of_a_model_are_inlined(tmp_path: Path) -> None:
    inner = helper.make_function(
        "other",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    path = write(
        tmp_path / "m.onnx",
        [helper.make_node("Twice", ["x"], ["y"], domain="other")],
        {"x": (4,)},
        ["y"],
    )
    model = onnx.load(path)
    model.functions.append(inner)
    onnx.save(model, path)
    assert [op.name for op in sound(lower_onnx(path)).ops] == ["aten.add"]


def test_views_share_bytes_and_permuted_ones_are_copied_to_be_reshaped(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["t", "axes"], ["u"]),
        helper.make_node("Reshape", ["u", "to"], ["y"]),
    ]
    weights = {"axes": ints(0), "to": ints(-1)}
    path = write(tmp_path / "m.onnx", nodes, {"x": (4, 6)}, ["y"], weights)
    graph = sound(lower_onnx(path))
    assert [op.name for op in graph.ops] == ["aten.permute", "aten.unsqueeze", "aten.reshape"]
    x, (t, u, y) = graph.tensors[0].tensor, (op.outputs[0] for op in graph.ops)
    assert x.buffer == t.buffer == u.buffer != y.buffer
    assert u.shape == (1, 6, 4)


def test_the_model_of_torch_s_exporter_runs_as_its_capture(tmp_path: Path) -> None:
    import torch

    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 8 * 8, 10),
    ).eval()
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        layers,
        (torch.randn(4, 3, 16, 16),),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
    )
    graph = sound(lower_onnx(path, dims={"batch": 64}))
    assert [op.base for op in graph.ops] == [
        "conv2d",
        "relu",
        "max_pool2d",
        "reshape",
        "linear",
    ]
    assert graph.dims == {"batch": 64}
    assert not predict(graph).priced.unknown


LINEAR = [("MatMul", ["x", "w"], ["p"]), ("Add", ["p", "b"], ["y"])]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("lead", [(8,), (2, 4)])
def test_a_product_and_its_bias_are_a_linear_layer(
    lead: tuple[int, ...], turned: bool, tmp_path: Path
) -> None:
    bias = ["b", "p"] if turned else ["p", "b"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", bias, ["y"])]
    weights = {"w": (16, 70), "b": (70,)}
    graph = sound(lower_onnx(write(tmp_path / "m.onnx", nodes, {"x": (*lead, 16)}, ["y"], weights)))
    (layer,) = graph.ops
    assert layer.name == "aten.linear"
    views = ["aten.view"] * (len(lead) > 1)
    assert [op.name for op in layer.body] == [*views, "aten.t", "aten.addmm", *views]
    assert layer.outputs[0].shape == (*lead, 70)
    assert {d.label: d.tensor.shape for d in graph.tensors if d.label}["w"] == (70, 16)


@pytest.mark.parametrize(
    ("more", "outputs", "bias"),
    [
        ([("Relu", ["p"], ["r"])], ["y", "r"], (70,)),  # the product has another user
        ([], ["y", "p"], (70,)),  # the product is a result
        ([("MatMul", ["x", "w"], ["q"])], ["y", "q"], (70,)),  # the weight has another user
        ([], ["y"], (8, 70)),  # a bias for each row
    ],
)
def test_a_product_that_others_see_stays_a_product(
    more: list[Any], outputs: list[str], bias: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [helper.make_node(*node) for node in (*LINEAR, *more)]
    weights = {"w": (16, 70), "b": bias}
    path = write(tmp_path / "m.onnx", nodes, {"x": (8, 16)}, outputs, weights)
    names = [op.name for op in sound(lower_onnx(path)).ops]
    assert "aten.linear" not in names
    assert "aten.add" in names


def test_a_linear_layer_costs_what_the_captured_one_does(tmp_path: Path) -> None:
    import torch

    from irgraph.capture.live import capture

    nodes = [helper.make_node(*node) for node in LINEAR]
    path = write(tmp_path / "m.onnx", nodes, {"x": (4, 32, 64)}, ["y"], {"w": (64, 96), "b": (96,)})
    lowered = sound(lower_onnx(path))
    layer = torch.nn.Linear(64, 96, device="meta")
    x = torch.empty(4, 32, 64, device="meta")
    with torch.no_grad():
        captured = capture(lambda: layer(x)).graph
    ours, its = (predict(graph) for graph in (lowered, captured))
    assert [k.name for k in ours.kernels()] == [k.name for k in its.kernels()]
    assert ours.step_time == pytest.approx(its.step_time)


def test_the_model_of_torch_s_newest_exporter_is_what_torch_runs(tmp_path: Path) -> None:
    import torch

    layers = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8))
    path = tmp_path / "net.onnx"
    sizes = ({0: torch.export.Dim("batch")},)
    x = torch.randn(2, 16, 64)
    torch.onnx.export(layers.eval(), (x,), str(path), dynamo=True, dynamic_shapes=sizes)
    graph = sound(lower_onnx(path, dims={"batch": 32}))
    assert [op.name for op in graph.ops] == ["aten.linear", "aten.relu", "aten.linear"]
    assert [op.name for op in graph.ops[0].body] == [
        "aten.view",
        "aten.t",
        "aten.addmm",
        "aten.view",
    ]
    assert [op.module for op in graph.ops] == ["0", "1", "2"]
    assert graph.dims == {"batch": 32}


def test_constants_keep_their_values_and_execution_takes_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from irgraph.execute import execute

    nodes = [
        helper.make_node("Constant", [], ["row"], value_floats=[0.1, float("-inf"), 3.0]),
        helper.make_node("Max", ["x", "row"], ["m"]),
        helper.make_node("Gather", ["m", "places"], ["y"], axis=1),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": (2, 3)}, ["y"], {"places": ints(2, 0)})
    graph = sound(lower_onnx(path))
    values = {d.label: d.value for d in graph.tensors}
    assert values == {"": None, "row": (0.1, float("-inf"), 3.0), "places": (2, 0)}
    result = execute(graph, {"x": torch.full((2, 3), 1.0)})
    (returned,) = graph.returned or ()
    assert result[returned.name].tolist() == [[3.0, 1.0]] * 2


def test_a_weight_of_many_elements_has_no_value(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (8, 16)}, ["y"], {"w": (16, 8)})
    assert [d.value for d in sound(lower_onnx(path)).tensors] == [None, None]


def test_axes_that_come_at_run_time_are_refused_not_guessed(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (8, 16), "axes": (1,)}, ["y"], opset=18)
    model = onnx.load(path)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    with pytest.raises(IrgraphError, match=r"ReduceSum \(y\).*'axes', is not a constant"):
        lower_onnx(path)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Softmax", {"axis": 1, "temperature": 2.0}),
        ("MaxPool", {"kernel_shape": [2, 2], "spatial": 1}),
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    ],
)
def test_an_attribute_that_is_not_read_is_named(
    op: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    nodes = [helper.make_node(op, ["x"], ["y"], name="here", **attributes)]
    path = write(tmp_path / "m.onnx", nodes, {"x": (4, 6, 8, 8)}, ["y"], opset=NEWEST)
    try:
        notes = lower_onnx(path).notes
    except IrgraphError as error:
        notes = (str(error),)
    assert f"{op} (here)" in notes[0]
    assert f"attribute {list(attributes)[-1]} = " in notes[0]


def test_an_axis_of_a_constant_is_not_resized(tmp_path: Path) -> None:
    from irgraph import run_script

    nodes = [
        helper.make_node("Constant", [], ["row"], value_floats=[0.1, 0.2, 3.0]),
        helper.make_node("Max", ["x", "row"], ["y"]),
    ]
    graph = sound(lower_onnx(write(tmp_path / "m.onnx", nodes, {"x": (2, 3)}, ["y"])))
    with pytest.raises(IrgraphError, match="is a constant: its value has one size"):
        run_script(graph, "resize %m.shape[1] of %m = aten.maximum(...) = 6")


def test_a_value_that_is_made_twice_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (2, 3)}, ["y"])
    with pytest.raises(IrgraphError, match="the value 'y' is made twice: by Relu, and by Neg"):
        lower_onnx(path)


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["xname"], ["y"])], {"xname": (2, 3)}, ["y"]
    )
    path.write_bytes(path.read_bytes().replace(b"xname", b"x\xffame"))
    with pytest.raises(IrgraphError, match="not an ONNX model"):
        lower_onnx(path)


@pytest.mark.parametrize(
    ("nodes", "outputs", "said"),
    [
        ([helper.make_node("Relu", ["x"], ["y"])], ["z"], "nothing makes the output 'z'"),
        ([helper.make_node("Relu", ["x"], [])], ["x"], "the node 'Relu' makes no value"),
    ],
)
def test_a_model_makes_its_outputs(
    tmp_path: Path, nodes: list[Any], outputs: list[str], said: str
) -> None:
    path = write(tmp_path / "m.onnx", nodes, {"x": (2, 3)}, outputs)
    with pytest.raises(IrgraphError, match=said):
        lower_onnx(path)
