"""Mutated programs are lowered or refused; none runs code, none is an internal error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.export import lower_export
from irgraph.diagnostics import IrgraphError
from tests.capture.export.mutations import CALL, CODES, MARK, outcomes, program, rename
from tests.capture.export.planted import rewritten

Program = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.pt2"
    program(path)
    return path


def test_mutated_programs_are_lowered_or_refused(tmp_path: Path) -> None:
    faults: list[str] = []
    codes = outcomes(range(7000, 7060), tmp_path, faults.append)
    assert not faults
    assert codes[4] > 20, "the mutations damage nothing"


@pytest.mark.slow
def test_a_thousand_mutated_programs_are_lowered_or_refused(tmp_path: Path) -> None:
    faults: list[str] = []
    outcomes(range(1000), tmp_path, faults.append)
    assert not faults


def _argument_names(part: Program, code: str) -> None:
    signature = part["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = ["x", "factor", f"gate={code}"]


def _keyword(part: Program, code: str) -> None:
    rename(part, "gate", code)
    signature = part["graph_module"]["module_call_graph"][0]["signature"]
    quoted = json.dumps(json.dumps([code]))
    signature["in_spec"] = signature["in_spec"].replace(json.dumps('["gate"]'), quoted)


def _renamed(name: str) -> Callable[[Program, str], None]:
    return lambda part, code: rename(part, name, code)


def _all_inputs(part: Program, code: str) -> None:
    """Defaults of all arguments, which Python evaluates where it defines the function."""
    for name in ("p_layer_weight", "p_layer_bias", "b_scale", "x", "factor", "gate"):
        rename(part, name, f"{name}=({code})")


PLACES: dict[str, Callable[[Program, str], None]] = {
    "arguments of the function": _argument_names,
    "all inputs": _all_inputs,
    "keyword arguments": _keyword,
    "input": _renamed("x"),
    "node": _renamed("linear"),
    "parameter": _renamed("layer.weight"),
    "its placeholder": _renamed("p_layer_weight"),
    "buffer": _renamed("scale"),
    "size": _renamed("s77"),
    "keyword of a call": _renamed("approximate"),
    "module": _renamed("layer"),
    "operator": _renamed("torch.ops.aten.linear.default"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_with_code_is_refused(
    place: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for code in CODES:
        copy = tmp_path / "copy.pt2"
        copy.write_bytes(saved.read_bytes())

        def edit(name: str, content: bytes, code: str = code) -> tuple[str, bytes]:
            if name != "models/model.json":
                return name, content
            part = json.loads(content)
            PLACES[place](part, code)
            return name, json.dumps(part).encode()

        before = copy.read_bytes()
        rewritten(copy, edit)
        if CALL not in str(copy.read_bytes()) and place == "size":
            continue  # the size has another name in this torch
        assert copy.read_bytes() != before
        with pytest.raises(IrgraphError, match="without running its code"):
            lower_export(copy)
        assert not (tmp_path / MARK).exists()


def test_the_program_itself_is_lowered(saved: Path) -> None:
    assert any(op.name == "aten.gelu" for op in lower_export(saved).graph.leaves())
