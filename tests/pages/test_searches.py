"""The reports of commands that search: formats, placements and variants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.cli.main import main
from tests.html.test_page import texts
from tests.pages.reading import Read
from tests.pages.test_commands import PAYLOAD

pytestmark = pytest.mark.long

MODEL = """model "served" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 32] in $x
input %ids : i64[40*B] in $ids
input %starts : i64[B] in $starts
param %w "items.weight" : f32[ROWS, 32] in $w
param %v "top.weight" : f32[32, 32] in $v
param %c "top.bias" : f32[32] in $c

%y, %y1, %y2, %y3 = aten._embedding_bag(%w, %ids, %starts) : f32[B, 32] in $y, i64[40*B] in $y1, i64[B] in $y2, i64[0] in $y3 in module "items"
%s = aten.add(%x, %y) : f32[B, 32] in $s from "et.json#3"
%h = aten.addmm(%c, %s, %v) : f32[B, 32] in $h in module "top"
%z = aten.relu(%h) : f32[B, 32] in $z in module "top"
return %z
"""  # noqa: E501

SPACE = """
passes = ["fuse-epilogue", "fuse-attention"]
dims.B = "256:1024:256"
devices = ["v100", "a100"]
limits."step.time" = "1s"
"""

FLEET = ("--platform", "dgx-1-optane", "--qps", "1000", "--latency", "50ms")
"""What is asked of a service."""

COMMANDS = {
    "place": ("place", "large.ir", *FLEET, "--indices", "zipf:0.9"),
    "tradeoff": (
        "place", "large.ir", "--platform", "dgx-1-nand", "--qps", "20000", "--latency", "50ms",
        "--formats", "i8", "--executed", "small.ir", "--indices", "zipf:1.05", "--for", "links",
        "--budget", "1",
    ),
    "plan": ("plan", "small.ir", "--ranks", "2", "--memory", "4GiB", "--seconds", "0"),
    "quantize": ("quantize", "small.ir", "--budget", "1", "--for", "parameters"),
    "tune": ("tune", "small.ir", "--space", "space.toml", "--trials", "12", "--seed", "1"),
    "front": (
        "tune", "small.ir", "--space", "space.toml", "--trials", "12", "--seed", "1",
        "--objective", "throughput", "--objective", "memory.peak",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder with models, and one with the same but markup for names."""
    made = (tmp_path_factory.mktemp("sound"), tmp_path_factory.mktemp("planted"))
    for folder, model in zip(made, (MODEL, planted(MODEL)), strict=True):
        (folder / "large.ir").write_text(model.replace("ROWS", "1000000000"))
        (folder / "small.ir").write_text(model.replace("ROWS", "50"))
        (folder / "space.toml").write_text(SPACE)
    return made


def planted(model: str) -> str:
    for name in ("served", "items.weight", "top.weight", "top.bias", "items", "top", "et.json#3"):
        model = model.replace(f'"{name}"', json.dumps(f"{PAYLOAD}{name}"))
    return model


Report = Callable[..., Read]


@pytest.fixture(scope="module")
def report(folders: tuple[Path, Path]) -> Report:
    """Return what runs a command in one of the folders, and returns its report."""
    known: dict[tuple[str, int], Read] = {}

    def call(name: str, folder: int = 0) -> Read:
        if (name, folder) not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folders[folder])
                assert main([*COMMANDS[name], "--html", "report.html"]) == 0
            known[name, folder] = Read((folders[folder] / "report.html").read_text("utf-8"))
        return known[name, folder]

    return call


def told(report: Report, name: str, folders: tuple[Path, Path]) -> Any:
    """Return what the command says with ``--json``, and the sections of its report by anchor."""
    import contextlib
    import io

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.chdir(folders[0])
        assert main([*COMMANDS[name], "--json"]) == 0
    found = report(name).data["sections"]
    return json.loads(said.getvalue()), {part.get("id", part["type"]): part for part in found}


@pytest.mark.parametrize("name", COMMANDS)
def test_names_are_no_markup(report: Report, name: str) -> None:
    sound, evil = report(name), report(name, 1)
    assert evil.markup == sound.markup
    assert sound.tags["script"] == 3
    assert PAYLOAD in json.dumps(evil.data)
    assert not any("<script" in text for text in texts(sound.data["sections"]))


def test_the_plans_are_those_of_the_command(report: Report, folders: tuple[Path, Path]) -> None:
    said, found = told(report, "plan", folders)
    heads = [column["name"] for column in found["plans"]["columns"]]
    steps = [row[heads.index("step")] for row in found["plans"]["rows"]]
    assert steps == pytest.approx([row["step_us"] for row in said["tried"]])
    assert [row[0] for row in found["placed"]["rows"]] == list(said["plan"]["tables"])
    head = found["headline"]
    low, high = said["tried"][0]["interval_us"]
    assert (head["span"]["low"], head["span"]["high"]) == (low, high)
    assert low < said["tried"][0]["step_us"] < high
    assert sum(share for _, share in head["provenance"]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"plan"}))
def test_a_search_shows_the_step_that_it_found(report: Report, name: str) -> None:
    """First the figures with their interval, then what was searched, then the path and all else."""
    sections = report(name).data["sections"]
    head, kinds = sections[0], [part.get("id") for part in sections]
    assert head["type"] == "headline"
    assert head["span"]["low"] < head["span"]["value"] < head["span"]["high"]
    assert {"path", "timeline"} <= set(kinds)
    assert kinds.index("path") > next(
        n for n, p in enumerate(sections) if p["type"] == "scatter" or p.get("id") == "ways"
    )


def test_the_formats_are_those_of_the_command(report: Report, folders: tuple[Path, Path]) -> None:
    said, found = told(report, "quantize", folders)
    heads = [column["name"] for column in found["formats"]["columns"]]
    cells = [dict(zip(heads, row, strict=True)) for row in found["formats"]["rows"]]
    assert [(c["parameter"], c["format"], c["plan"] == "chosen") for c in cells] == [
        (row["parameter"], row["format"], row["chosen"]) for row in said["rows"]
    ]
    assert [c["KL, nats"] for c in cells] == pytest.approx([row["kl"] for row in said["rows"]])
    assert found["plan"]["code"] == said["script"]
    points = found["gains"]["points"]
    for one in points:
        better = [p for p in points if p["x"] <= one["x"] and p["y"] > one["y"]]
        assert not one["front"] or not better, one
    assert any(one["front"] for one in points)


def test_the_ways_are_those_of_the_command(report: Report, folders: tuple[Path, Path]) -> None:
    said, found = told(report, "place", folders)
    heads = [column["name"] for column in found["ways"]["columns"]]
    cells = [dict(zip(heads, row, strict=True)) for row in found["ways"]["rows"]]
    assert [(c["tables on"], c["hosts"], c["query"]) for c in cells] == [
        (way["name"], way["fleet"]["hosts"], pytest.approx(way["latency_us"])) for way in said
    ]
    step = found["headline"]["span"]["value"]
    assert step <= said[0]["step"], "other queries use the slow tier as well"
    path = found["path"]["columns"]
    assert sum(path["length"]) / 1000 == pytest.approx(step, rel=1e-3)


def test_the_front_is_that_of_the_command(report: Report, folders: tuple[Path, Path]) -> None:
    said, found = told(report, "tradeoff", folders)
    shown = [(p["x"], p["y"], p["front"]) for p in found["front"]["points"]]
    assert shown == [
        (pytest.approx(p["kl"]), pytest.approx(p["link_bytes"]), p["front"]) for p in said["points"]
    ]
    assert [row[2] for row in found["plans"]["rows"]].count("chosen") == 1


def test_the_best_variant_is_that_of_the_command(
    report: Report, folders: tuple[Path, Path]
) -> None:
    said, found = told(report, "tune", folders)
    (best,) = said["best"]
    assert found["script"]["code"] == best["script"]
    assert found["best"]["rows"][0][:2] == [best["trial"], best["figures"]["step.time"]]
    assert found["headline"]["span"]["value"] == best["figures"]["step.time"]
    trials = found["trials"]["rows"]
    assert len(trials) == said["trials"] - sum(said["refused"].values())
    assert min(row[1] for row in trials) == best["figures"]["step.time"]


def test_a_pareto_front_is_joined(report: Report, folders: tuple[Path, Path]) -> None:
    said, found = told(report, "front", folders)
    chart = found["search"]
    assert [axis["name"] for axis in chart["axes"]] == ["memory.peak", "throughput"]
    front = sorted(p["y"] for p in chart["points"] if p["front"])
    assert front == sorted(one["figures"]["throughput"] for one in said["best"])


@pytest.mark.parametrize(
    "words",
    [
        (*COMMANDS["tune"], "--explain"),
        (*COMMANDS["quantize"], "--plan", "none.irg"),
    ],
)
def test_what_is_no_search_has_no_report(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folders[0])
    assert main([*words, "--html", "none.html"]) == 2
    assert "a search" in capsys.readouterr().err
    assert not Path("none.html").exists()
