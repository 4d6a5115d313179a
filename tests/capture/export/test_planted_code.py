"""No file of a program runs code when it is lowered."""

from __future__ import annotations

import io
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from irgraph.capture.export import lower_export
from irgraph.capture.export.validation import UntrustedError, validate
from irgraph.capture.lower import lower_file
from irgraph.diagnostics import IrgraphError
from irgraph.text import print_graph
from tests.capture.export.planted import rewritten, saying

ENUMERATION = r"[{\\\"__enum__\\\": true, \\\"fqn\\\": \\\"antigravity:x\\\"}]"
"""A key of an output that is an enumeration of a module that would be imported."""


class Payload:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


class Half(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """Something with a size that follows from another, a buffer and named outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def forward(self, x: Any, factor: float = 2.0) -> Any:
        flat = x.reshape(x.shape[0] * x.shape[1], 8)
        return {"y": self.layer(flat) * self.scale * factor}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "factor": None}
    program = torch.export.export(Half(), (torch.randn(4, 3, 8), 2.0), dynamic_shapes=shapes)
    path = tmp_path / "half.pt2"
    torch.export.save(program, path)
    return path


def pickled(mark: Path) -> bytes:
    file = io.BytesIO()
    torch.save(Payload(mark), file)
    return file.getvalue()


def test_the_program_is_that_which_torch_reads(saved: Path) -> None:
    ours, theirs = (lower_export(saved, trust=trust) for trust in (False, True))
    assert print_graph(ours.graph) == print_graph(theirs.graph)
    assert "3*" in print_graph(ours.graph)


def test_sample_inputs_are_not_unpickled(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    before = print_graph(lower_export(saved).graph)

    def edit(name: str, content: bytes) -> tuple[str, bytes]:
        return name, pickled(mark) if name.startswith("data/sample_inputs") else content

    rewritten(saved, edit)
    hidden = saved.rename(tmp_path / "half.json")
    assert print_graph(lower_file(hidden, name="half").graph) == before.replace(".pt2", ".json")
    assert not mark.exists()
    with suppress(IrgraphError):  # the payload makes no inputs
        lower_export(hidden, trust=True)
    assert mark.exists(), "the payload is none: torch's own reader did not run it"


def test_constants_and_weights_are_not_unpickled(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def edit(name: str, content: bytes) -> tuple[str, bytes]:
        if name.endswith("_config.json"):
            return name, content.replace(b'"use_pickle": false', b'"use_pickle": true')
        held = name.startswith(("data/weights/", "data/constants/"))
        return name, pickled(mark) if held else content

    rewritten(saved, edit, {"data/constants/opaque_0": pickle.dumps(Payload(mark))})
    lower_export(saved)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("torch.ops.aten.linear.default", "torch.hub.load", "it calls torch.hub.load"),
        ("torch.ops.aten.linear.default", "torch.os.system", "it calls"),
        ("torch.ops.aten.linear.default", "_operator.methodcaller", "it calls"),
        ("torch.ops.aten.linear.default", "torch.ops.aten.from_file.default", "it calls"),
        ("torch.ops.aten.linear.default", "torch.ops.debugprims.load_tensor.default", "calls"),
        ("torch.ops.aten.linear.default", "torch.ops.aten.linear.default.__globals__", "calls"),
        ("torch.ops.aten.linear.default", "#os.system", "it calls"),
        ("Symbol(", "__import__('pathlib').Path('ran').touch() or Symbol(", "a size is"),
        ("Symbol(", "Symbol.__class__(", "a size is"),
        ("Integer(3)", "Pow(Integer(9), Integer(99999999))", "a size is"),
        ("Integer(3)", f"Integer({'9' * 30})", "a size is"),
        ("Integer(3)", "lambda: 3", "a size is"),
        ('[\\\\\\"y\\\\\\"]', ENUMERATION, "enumeration"),
        ("builtins.dict", "my.own.Type", "of the type my.own.Type"),
        ('"custom_obj_values": {}', '"custom_obj_values": {"a": {"class_fqn": "a.b"}}', "custom"),
    ],
)
def test_what_is_not_known_to_be_harmless_is_refused(
    saved: Path,
    before: str,
    after: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    saying(saved, before, after)
    with pytest.raises(IrgraphError, match="without running its code: .*" + reason):
        lower_export(saved)
    assert not (tmp_path / "ran").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(saved: Path) -> None:
    def edit(name: str, content: bytes) -> tuple[str, bytes]:
        return name, content + b" " * (80 << 20) if name == "models/model.json" else content

    rewritten(saved, edit, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(IrgraphError, match="compressed bytes expand to more than"):
        lower_export(saved)


def test_sizes_of_today_are_known() -> None:
    text = "Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(-1))"
    power = "PowByNatural(Symbol('s0', integer=True), Integer(2))"
    for size in (text, power, "s77", "FloorDiv(s0, 2)", "2*s0"):
        assert validate({"expr_str": size}) == {"expr_str": size}
    with pytest.raises(UntrustedError):
        validate([{"a": {"expr_str": "exit()"}}])
