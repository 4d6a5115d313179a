"""Messages that only programs, damaged files or missing packages lead to."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from irgraph.capture.export import lower_export
from irgraph.capture.onnx import lower_onnx
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language import load_script, run
from irgraph.language.expressions.evaluate import EvaluationError, Scope, evaluate
from irgraph.language.expressions.nodes import ListOf, Name, Splat, Variable
from irgraph.manage.bisect import bisect
from irgraph.manage.stage import PipelineStep, stages
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse
from irgraph.text.builder import Builder, BuildError
from irgraph.verbs import Axis, RefusedError, resize
from irgraph.verbs import replace as put
from tests.capture.export.planted import rewritten, saying
from tests.language.models import mlp, model

Golden: TypeAlias = Callable[[str, str], None]
X = Tensor("x", "f32", (4,), "x")
Y = Tensor("y", "f32", (4,), "y")


def checked(
    *ops: Op, tensors: Sequence[Tensor] = (X,), returned: tuple[Tensor, ...] | None = None
) -> str:
    """Return what the verifier says about ops."""
    declared = tuple(Declared("input", tensor) for tensor in tensors)
    graph = Graph("g", tensors=declared, ops=ops, returned=returned)
    return "\n".join(f"{f.message}\n{f.hint}".rstrip() for f in verify(graph))


def twice() -> str:
    op = Op("aten.relu_", (X,), written=frozenset(["x"]))
    return checked(op, op)


def without(package: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the message for a file where the package that reads it is not installed."""
    monkeypatch.setitem(sys.modules, package, None)
    lower = lower_onnx if package == "onnx" else lower_export
    with pytest.raises(IrgraphError) as caught:
        lower(path)
    return str(caught.value)


def deep() -> object:
    return parse('model "m" { format = 1 }\naten.f(k = ' + "[" * 5000 + "]" * 5000 + ")", "m.ir")


def said(case: Callable[[], object]) -> str:
    """Return what a case says, or raises."""
    try:
        return str(case())
    except (IrgraphError, EvaluationError, BuildError, RefusedError) as error:
        return str(error)


LEAVES = mlp()
CASES: dict[str, Callable[[], object]] = {
    "values of expressions": lambda: evaluate(Name("a"), Scope({})),
    "values of tensors": lambda: evaluate(Variable("a"), Scope({})),
    "values of ops": lambda: evaluate(Name("op"), Scope({"op": LEAVES.ops[0]})),
    "values of columns": lambda: evaluate(ListOf((Splat("a"),)), Scope({})),
    "sizes: none": lambda: Builder().size(""),
    "sizes: no size": lambda: Builder().size("?"),
    "literals: no device": lambda: Builder().literal("@"),
    "types: unknown": lambda: Builder().tensor("x", "f33", "4", "", "b1"),
    "a name twice": lambda: checked(tensors=(X, X)),
    "a value of another length": lambda: "\n".join(
        f.message for f in verify(Graph("g", tensors=(Declared("param", X, "", (1.0,)),)))
    ),
    "a name too early": lambda: checked(Op("aten.relu", (Y,))),
    "a name with two meanings": lambda: checked(Op("aten.relu", (replace(X, dtype="f64"),))),
    "a return of nothing": lambda: checked(returned=(Y,)),
    "a return of another type": lambda: checked(returned=(replace(X, dtype="f64"),)),
    "a write of no operand": lambda: checked(Op("aten.relu_", (X,), written=frozenset(["y"]))),
    "a type of nobody": lambda: checked(tensors=(replace(X, dtype="f33"),)),
    "strides of other axes": lambda: checked(tensors=(replace(X, strides=(1, 2)),)),
    "an op in two places": twice,
    "parameters of a script": lambda: run(load_script("let a = 1", "s.irg"), mlp(), {"n": 1}),
    "a device without cost models": lambda: run(load_script('target "v100"', "s.irg"), mlp()),
    "a device that is no name": lambda: run(
        load_script("let d = [3] target d[0]", "s.irg"),
        mlp(),
        targets=lambda name: None,  # type: ignore[arg-type, return-value]
    ),
    "a constant of another size": lambda: run(
        load_script("resize %m.shape[0] of %m = aten.maximum(...) = 4", "s.irg"),
        model(
            "input %x : f32[2] in $x\nparam %c : f32[2] in $c = [1.0, 2.0]\n"
            "%m = aten.maximum(%x, %c) : f32[2] in $m\n"
        ),
    ),
    "a model that uses what nothing defines": lambda: run(
        load_script("find r = aten.relu remove aten.neg(%x)", "s.irg"),
        replace(
            model("input %x : f32[4] in $x\n%n = aten.neg(%x) : f32[4] in $n\n"),
            ops=(
                *model("input %x : f32[4] in $x\n%n = aten.neg(%x) : f32[4] in $n\n").ops,
                Op("aten.relu", (Y,)),
            ),
        ),
    ),
    "a result that is unsound": lambda: run(
        load_script("insert %z = aten.neg(%x) after aten.relu(%x)", "s.irg"),
        replace(LEAVES, ops=(*LEAVES.ops, LEAVES.ops[-1])),
    ),
    "a bisection that starts broken": lambda: bisect(
        mlp(), stages([PipelineStep("text", "let a = 1")]), lambda graph: "it is too slow"
    ),
    "resize: no size": lambda: resize(mlp(), "B", 0),
    "resize: no dimension": lambda: resize(mlp(), "BB", 3),
    "resize: no tensor": lambda: resize(mlp(), Axis("w11", 0), 3),
    "resize: no axis": lambda: resize(mlp(), Axis("w1", 2), 3),
    "resize: two sizes": lambda: resize(mlp(), [Axis("w1", 0), Axis("x0", 0)], 3),
    "replace: a result in use": lambda: put(LEAVES, [LEAVES.ops[1]], []),
    "text: nested too deeply": deep,
    "replace: another type": lambda: put(
        LEAVES,
        [LEAVES.ops[1]],
        [replace(LEAVES.ops[1], results=(replace(LEAVES.ops[1].outputs[0], dtype="f64"),))],
    ),
}


def page(cases: dict[str, str]) -> str:
    """Return messages as the text of a golden file; where they lie, and others' words, left out."""
    text = "\n".join(f"# {name}\n{message}\n" for name, message in cases.items())
    return re.sub(r"/[\w/.-]*/", "", text)


def test_messages_of_programs(golden: Golden) -> None:
    golden("messages/programs.txt", page({name: said(case) for name, case in CASES.items()}))


def test_messages_of_files(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.irg").write_bytes(b"\xff\xfe\x00")
    cases = {
        "a pass that is no text": said(
            lambda: run(load_script("apply mine", "s.irg"), mlp(), paths=[tmp_path])
        ),
        "without onnx": without("onnx", tmp_path / "mine.irg", monkeypatch),
        "without torch": without("torch", tmp_path / "mine.irg", monkeypatch),
    }
    golden("messages/files.txt", page(cases))


def test_messages_of_onnx_models(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    from tests.capture.onnx.test_onnx import ints, write

    node, path = onnx.helper.make_node, tmp_path / "m.onnx"

    def lower(nodes: list[Any], shape: Sequence[int | str] = (4, 8), **more: Any) -> str:
        dims = more.pop("dims", None)
        write(path, nodes, {"x": shape}, ["y"], more.pop("weights", {}), **more)
        return said(lambda: lower_onnx(path, dims=dims)).partition(": <")[0]

    relu = [node("Relu", ["x"], ["y"])]
    cases = {
        "old": lower(relu, opset=6),
        "not out yet": lower(relu, opset=99),
        "old, and not converted": _first(lower([node("Nothing", ["x"], ["y"])], opset=12)),
        "open": lower(relu, ("batch", 8)),
        "open, misspelled": lower(relu, ("batch", 8), dims={"batsh": 3}),
        "closed": lower(relu, dims={"batch": 3}),
        "by data": lower([node("NonZero", ["x"], ["y"])]),
        "wrong": _first(lower([node("MatMul", ["x", "w"], ["y"])], weights={"w": (3, 3)})),
    }
    twice = [*relu, node("Neg", ["x"], ["y"])]
    cases["a value made twice"] = lower(twice)
    cases["a node that makes nothing"] = lower([*relu, node("Neg", ["x"], [])])
    cases["an output that nothing makes"] = lower([node("Relu", ["x"], ["z"])])
    lower([node("Relu", ["x"], ["y"], name="named")])
    path.write_bytes(path.read_bytes().replace(b"named", b"\xff" * 5))
    cases["a name that is no text"] = said(lambda: lower_onnx(path))
    path.write_bytes(b"\x00\x01 no model")
    cases["no model"] = _first(said(lambda: lower_onnx(path)))
    onnx.save(onnx.ModelProto(ir_version=8), path)
    cases["no graph"] = said(lambda: lower_onnx(path))
    reshape = [node("Reshape", ["x", "to"], ["y"])]
    write(path, reshape, {"x": (8, 128)}, ["y"], {"to": ints(16, 64)})
    external = tmp_path / "external.onnx"
    onnx.save_model(
        onnx.load(path),
        external,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    (tmp_path / "w.bin").unlink()
    cases["a weight that is gone"] = _first(said(lambda: lower_onnx(external)))
    cases |= _changed(path, lambda: lower(relu))
    golden("messages/onnx.txt", page(cases))


def _changed(path: Path, write: Callable[[], str]) -> dict[str, str]:
    """Return what is said of models with types that the IR lacks."""
    import onnx

    def changed(change: Callable[[Any], object]) -> str:
        write()
        proto = onnx.load(path)
        change(proto.graph)
        onnx.save(proto, path)
        return said(lambda: lower_onnx(path))

    def odd(graph: Any) -> None:
        graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING

    text = onnx.helper.make_tensor("c", onnx.TensorProto.STRING, (1,), [b"a"])
    sequence = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, (4,))
    return {
        "an input of strings": changed(odd),
        "an input without a shape": changed(
            lambda g: g.input[0].type.tensor_type.ClearField("shape")
        ),
        "an input that is a list": changed(lambda g: g.input.append(sequence)),
        "a constant of strings": changed(lambda g: g.initializer.append(text)),
        "a sparse constant": changed(_sparse),
    }


def _sparse(graph: Any) -> None:
    graph.sparse_initializer.add().values.name = "c"


def test_messages_of_exported_programs(golden: Golden, tmp_path: Path) -> None:
    import torch

    path = tmp_path / "m.pt2"
    path.write_bytes(b"no program")
    program = torch.export.export(torch.nn.Linear(8, 4), (torch.randn(2, 8),))
    cases = {
        "no program": _first(said(lambda: lower_export(path))),
        "no dimension": said(lambda: lower_export(program, dims={"B": 3})),
    }
    cases |= untrusted(program, tmp_path / "calls.pt2")
    program.example_inputs = None
    cases["no inputs"] = said(lambda: lower_export(program))
    golden("messages/export.txt", page(cases))


def untrusted(program: Any, path: Path) -> dict[str, str]:
    """Return what is said of programs that only torch with its pickles could read."""
    import torch

    def renamed(name: str, content: bytes) -> tuple[str, bytes]:
        return name.replace("models/model", "models/other"), content

    torch.export.save(program, path)
    called = said(
        lambda: lower_export(saying(path, "torch.ops.aten.linear.default", "torch.hub.load"))
    )
    return {
        "a program that calls what may do harm": called.replace(str(path), "calls.pt2"),
        "several programs": said(lambda: lower_export(rewritten(path, renamed))).replace(
            str(path), "calls.pt2"
        ),
    }


def _first(message: str) -> str:
    """Return a message without the words of the library that it quotes."""
    head, colon, _ = message.rpartition(": ")
    while head.count(": ") > 2:
        head, colon, _ = head.rpartition(": ")
    return head + colon.rstrip() + " ..."
