"""What a file says cannot steer the terminal, nor hide in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from irgraph.diagnostics import json_text, visible_text
from irgraph.text import parse, print_graph

EVIL = "a\x1b]0;owned\x07\x1b[2J\u202egnp\x9b31m\u200b\rb[/x][bold]:smile:"
RAW = "\x1b\x07\u202e\x9b\u200b\r"


def test_each_character_that_steers_is_spelt_out() -> None:
    assert not set(RAW) & set(visible_text(EVIL))
    assert visible_text("tab\tline\nä 漢 -") == "tab\tline\nä 漢 -"
    assert visible_text("\x1b\u202e\ud800") == r"\x1b\u202e\ud800"


def test_json_is_json_whatever_the_names_and_numbers() -> None:
    value = {EVIL: [EVIL, "\ud800", float("nan"), float("inf"), 1.5]}
    text = json_text(value, indent=2)
    assert not set(RAW) & set(text)
    assert text.encode()  # no half of a character is left
    found = json.loads(text, parse_constant=pytest.fail)
    assert found == {EVIL: [EVIL, "\ud800", None, None, 1.5]}


def test_a_model_s_strings_come_back_as_they_were() -> None:
    text = f'model "m" {{ format = 2 }}\ninput %x {json.dumps(EVIL)} : f32[4] in $b1\n'
    printed = print_graph(parse(text, "m.ir"))
    assert not set(RAW) & set(printed)
    assert print_graph(parse(printed, "m.ir")) == printed
    assert parse(printed, "m.ir").tensors[0].label == EVIL


@pytest.fixture
def model(tmp_path: Path) -> Path:
    name = json.dumps(EVIL)
    lines = (
        f"model {name} {{ format = 2  note = {name} }}",
        f"input %x {name} : f32[4, 4] in $b1",
        f"label.x() in module {name} from {name} {{",
        f"  %y = aten.relu(%x) : f32[4, 4] in $b2 in module {name} from {name}",
        "}",
        "return %y",
        "",
    )
    path = tmp_path / "evil.ir"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "{model}"),
        ("show", "--json", "{model}"),
        ("verify", "{model}"),
        ("predict", "{model}"),
        ("predict", "--by", "module", "{model}"),
        ("show", EVIL),
        ("predict", "--device", EVIL, "{model}"),
        ("opt", "-e", f"remove {EVIL}", "{model}"),
        ("lower", "{model}"),
        ("analyze", "{model}"),
        ("passes", EVIL),
        (EVIL,),
        ("diff", "{model}", "{model}"),
        ("check", "{model}", "{model}"),
    ],
)
def test_no_command_passes_it_on(model: Path, arguments: tuple[str, ...]) -> None:
    command = [text.replace("{model}", str(model)) for text in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "irgraph", *command],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    text = (done.stdout + done.stderr).decode()
    assert "internal error" not in text
    assert not set(RAW) & set(text), text
