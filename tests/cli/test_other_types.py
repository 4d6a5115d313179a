"""Values of other types, and texts that steer terminals, in every place of every JSON format."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.anonymise.test_planted_secrets import planted
from tests.cli.fuzz.harness import Case, judged, run
from tests.cli.fuzz.seeds import FORMATS
from tests.diagnostics.test_visible import EVIL, RAW

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "kineto": (("overheads", "@"), ("anonymise", "@", "-o", "out"), ("analyze", "@", "--json"),
               ("roofline", "@"), ("lower", "et.json", "--kineto", "@"), ("replay", "@")),
    "execution trace": (("lower", "@"), ("anonymise", "@", "-o", "out")),
    "host table": (("overheads", "@"), ("predict", "model.ir", "--host", "@")),
    "sheet": (("predict", "model.ir", "--device", "@", "--json"),),
    "indices": (("predict", "model.ir", "--indices", "@"),),
    "fabric": (("predict", "model.ir", "--ranks", "2", "--fabric", "@", "--json"),),
}  # fmt: skip
OTHERS = ([1], {"a": 1}, 7, -1e30, "x", "\ud800", None, True)
SPOKEN = ("X", "ph", "M", "s", "f", "cpu_op", "kernel", "cuda_runtime", "1.1.1", "gpu_memcpy")


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each kind of place in a value once: the keys that lead to it, its holder, its key."""
    held = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in held:
        here = (*path, str(key) if isinstance(value, dict) and len(value) < 40 else "[]")
        yield here, value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner, here)


def test_every_format_is_tried() -> None:
    spelled = {name for name, one in FORMATS.items() if one.file.endswith(".json")}
    assert spelled <= set(COMMANDS)


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_value_of_another_type_is_no_internal_error(place: Path, kind: str) -> None:
    sound = json.loads((place / FORMATS[kind].file).read_text())
    known = sorted({path for path, _, _ in places(sound)})
    for number, wanted in enumerate(known[:: 1 + len(known) // 80]):  # a host table has hundreds
        for other in OTHERS[number % 2 :: 2]:
            made = copy.deepcopy(sound)
            at = [(holder, key) for path, holder, key in places(made) if path == wanted]
            for holder, key in at:
                holder[key] = other
            (place / "other.json").write_text(json.dumps(made))
            for command in COMMANDS[kind]:
                arguments = tuple("other.json" if word == "@" else word for word in command)
                _, wrong = judged(Case(kind, arguments), {})
                assert not wrong, (wanted, other, arguments, wrong)


@pytest.mark.parametrize("kind", COMMANDS)
def test_no_text_reaches_the_terminal_raw(place: Path, kind: str) -> None:
    sound = json.loads((place / FORMATS[kind].file).read_text())
    for plant in (lambda word: word + EVIL, lambda word: EVIL):
        for spared in (SPOKEN, ()):
            made = planted(
                sound, lambda word, p=plant, s=spared: word if word in s else p(word), keys=False
            )
            (place / "evil.json").write_text(json.dumps(made))
            for command in (*FORMATS[kind].commands, ("compare", "evil.json", "kineto.json")):
                ran = run(tuple("evil.json" if word == "@" else word for word in command))
                said = ran.err + ran.out
                assert "internal error" not in said
                assert not set(RAW) & set(said), (command, said)


def test_no_cell_of_a_table_is_a_formula(place: Path) -> None:
    text = (place / "kineto.json").read_text().replace('"aten::', '"=cmd|x!A0 aten::')
    (place / "formula.json").write_text(text)
    assert run(("analyze", "formula.json", "--csv", "tables")).code in (0, 3)
    cells = [
        cell
        for path in (place / "tables").iterdir()
        for row in csv.reader(path.read_text().splitlines())
        for cell in row
    ]
    assert any(cell.startswith("'=cmd|") for cell in cells)
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)
