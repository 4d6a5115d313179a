"""The reports of commands that read models and traces, on small files of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from irgraph.cli.commands.report import commands_with_reports
from irgraph.cli.main import main
from tests.cli.fuzz.seeds import FORMATS, MODEL
from tests.html.test_page import texts
from tests.pages.reading import Read

PAYLOAD = "</script><script>planted = 1</script><!--"
KEPT = ("X", "ph", "f", "s", "i", "M", "cpu_op", "kernel", "cuda_runtime", "cuda_driver",
        "gpu_memcpy", "gpu_memset", "user_annotation", "Operator", "ac2g", "GPU 0",
        "process_labels")  # fmt: skip
"""Words that make a trace's events what they are."""

REMOVED = "remove many %y = aten.mul(%x, 2.5) using %x for %y"

COMMANDS = {
    "predict": ("predict", "@"),
    "recorded": ("predict", "@", "--recorded", "kineto.json"),
    "diff": ("diff", "@", "other.ir", "--device", "v100"),
    "structure": ("diff", "@", "other.ir", "--device", "none"),
    "opt": ("opt", "@", "-e", REMOVED, "--device", "a100", "-o", "out.ir"),
    "unpriced": ("opt", "@", "-e", "remove many aten.mul(_, 2.5)", "-o", "out.ir"),
    "ranks": ("ranks", "@", "@", "--late", "1=normal:1ms,100us"),
    "analyze": ("analyze", "#", "--show", "queues"),
    "ranks analyzed": ("analyze", "#", "kineto.json"),
    "replay": ("replay", "#"),
    "compare": ("compare", "#", "kineto.json"),
}
"""Command lines: ``@`` is a model, ``#`` a trace."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with sound files, and the same with markup for names, to stand in."""
    folder, model = tmp_path_factory.mktemp("place"), MODEL
    (folder / "model.ir").write_text(model)
    (folder / "other.ir").write_text(model.replace("2.5", "3.5"))
    for name in ("s", "tower", "m", "et.json#3", "tower.weight", "## label ##"):
        model = model.replace(f'"{name}"', json.dumps(PAYLOAD))
    (folder / "planted.ir").write_text(model)
    FORMATS["kineto"].write(folder / "kineto.json")
    trace = json.loads((folder / "kineto.json").read_text())
    (folder / "planted.json").write_text(json.dumps(planted(trace)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def planted(value: Any) -> Any:
    """Return a trace with markup for every text that may be one."""
    if isinstance(value, dict):
        return {key: planted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [planted(inner) for inner in value]
    keep = not isinstance(value, str) or value in KEPT or value.startswith(("ProfilerStep", "cuda"))
    return value if keep else PAYLOAD + value


def report(words: tuple[str, ...], model: str, trace: str) -> Read:
    """Run a command and return its report."""
    line = [{"@": model, "#": trace}.get(word, word) for word in words]
    Path("report.html").unlink(missing_ok=True)
    assert main([*line, "--html", "report.html"]) in (0, 3), line
    return Read(Path("report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_writes_a_report_in_which_names_are_no_markup(place: Path, name: str) -> None:
    sound = report(COMMANDS[name], "model.ir", "kineto.json")
    evil = report(COMMANDS[name], "planted.ir", "planted.json")
    assert evil.markup == sound.markup
    assert sound.tags["script"] == 3
    assert sound.data["sections"][0]["type"] in ("headline", "table")
    assert PAYLOAD in json.dumps(evil.data)
    assert not any("<script" in text for text in texts(sound.data["sections"]))


def test_the_report_of_a_rewrite_says_why_it_is_legal(place: Path) -> None:
    sections = report(COMMANDS["opt"], "model.ir", "").data["sections"]
    assert [part["id"] for part in sections if part.get("id")][:2] == ["rewrites", "stages"]
    kinds = [part["type"] for part in sections]
    assert kinds.count("slices") == 2
    unpriced = report(COMMANDS["unpriced"], "model.ir", "").data["sections"]
    assert "not predicted" in texts(unpriced[0])
    assert "its result %x is still in use" in json.dumps(unpriced)


def test_the_report_of_a_difference_has_both_steps_on_one_clock(place: Path) -> None:
    found = report(COMMANDS["diff"], "model.ir", "").data["sections"]
    timeline = next(part for part in found if part.get("id") == "timeline")
    assert {track[0] for track in timeline["tracks"]} == {"before", "after"}


def test_the_report_of_an_analysis_has_the_figures_of_its_json(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(COMMANDS["analyze"], "", "kineto.json").data["sections"]
    capsys.readouterr()
    main(["analyze", "kineto.json", "--json"])
    told = json.loads(capsys.readouterr().out)
    steps = next(part for part in found if part.get("id") == "steps")
    at = [column["name"] for column in steps["columns"]].index("step")
    columns = [column["kind"] for column in steps["columns"]]
    times = [row[columns.index("us")] for row in steps["rows"]]
    assert times == [row["step_us"] for row in told["steps"]]
    assert [row[at] for row in steps["rows"]] == [row["step"] for row in told["steps"]]


def test_ranks_come_one_after_the_other(place: Path) -> None:
    found = report(COMMANDS["ranks"], "model.ir", "").data["sections"]
    tracks = next(part for part in found if part.get("id") == "timeline")["tracks"]
    assert [track[0] for track in tracks] == sorted(track[0] for track in tracks)
    assert {track[0] for track in tracks} == {"rank 0", "rank 1"}


def test_a_report_of_a_command_is_that_of_its_option(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = report(COMMANDS["diff"], "model.ir", "").data
    assert (
        main(
            ["report", "-o", "told.html", *COMMANDS["diff"][:1], "model.ir", *COMMANDS["diff"][2:]]
        )
        == 0
    )
    assert "the report: told.html" in capsys.readouterr().err
    told = Read(Path("told.html").read_text(encoding="utf-8")).data
    assert told["sections"] == one["sections"]
    assert told["command"] == "irgraph diff model.ir other.ir --device v100 --html told.html"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("report", "verify", "model.ir"), 2, "commands with reports: "),
        (("report", "predic", "model.ir"), 2, "did you mean 'predict'?"),
        (("report", "predict", "none.ir"), 4, "none.ir"),
        (("report", "-o", "no/where.html", "predict", "model.ir"), 4, "where.html"),
        (("report",), 2, "missing argument"),
    ],
)
def test_what_has_no_report_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    Path("report.html").unlink(missing_ok=True)
    assert main(list(words)) == code
    assert said in capsys.readouterr().err
    assert not Path("report.html").exists()


def test_every_command_with_a_report_is_one_that_is_tested() -> None:
    from tests.pages import test_searches

    tested = {words[0] for words in (*COMMANDS.values(), *test_searches.COMMANDS.values())}
    assert {entry.name for entry in commands_with_reports()} == tested
