"""No file runs code: payloads in every text of every format, and in place of every file."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import grammars
from tests.anonymise.test_planted_secrets import planted
from tests.cli.fuzz.harness import run, workplace
from tests.cli.fuzz.seeds import FORMATS, MODEL, SCRIPT

MARK = "payload-ran"
RUNS = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}
"""What payloads of the usual kinds do first, as the interpreter's audit names it."""

CODE = f"__import__('pathlib').Path('{MARK}').touch()"
TEXTS: tuple[str, ...] = (
    CODE,
    f"{{0.__class__}} ${{{CODE}}} $(touch {MARK}) `touch {MARK}`",
    f"; touch {MARK} #",
    f"!!python/object/apply:os.system ['touch {MARK}']",
    f"x' or {CODE} or '",
)
seen: list[str] = []
watching: list[bool] = []


def _watch(event: str, _: object) -> None:
    if watching and event in RUNS:
        seen.append(event)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    sys.addaudithook(_watch)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])
        with workplace() as folder:
            yield folder


@contextmanager
def nothing_runs(place: Path, what: object) -> Iterator[None]:
    seen.clear()
    watching.append(True)
    try:
        yield
    finally:
        watching.clear()
    assert not seen, what
    assert not list(place.rglob(MARK)), what


class Payload:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(MARK),)


def saved() -> bytes:
    made = io.BytesIO()
    torch.save(Payload(), made)
    return made.getvalue()


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("a/data.pkl", pickle.dumps(Payload()))
        file.writestr("a/x.json", pickle.dumps(Payload()))
    return made.getvalue()


def test_the_payloads_are_some(place: Path) -> None:
    with pytest.raises(AssertionError), nothing_runs(place, "pickle"):
        pickle.loads(pickle.dumps(Payload()))
    (place / MARK).unlink()
    with pytest.raises(AssertionError), nothing_runs(place, "torch"):
        torch.load(io.BytesIO(saved()), weights_only=False)
    (place / MARK).unlink()


def commands(name: str, suffix: str) -> Iterator[tuple[str, ...]]:
    one = FORMATS[name]
    for command in one.commands:
        if command[0] not in ("reduce", "bisect"):
            yield tuple(f"planted{suffix}" if word == "@" else word for word in command)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("make", [lambda: pickle.dumps(Payload()), saved, zipped])
def test_no_command_unpickles(place: Path, name: str, make: Callable[[], bytes]) -> None:
    chosen = FORMATS[name]
    suffix = Path(chosen.file).suffix
    planted_file = place / (chosen.place or f"planted{suffix}")
    planted_file.parent.mkdir(exist_ok=True)
    # a part whose content is not its hash's is computed again
    codes = (0, 1, 2, 4) if chosen.hashed else (1, 2, 4)
    for command in commands(name, suffix):
        planted_file.write_bytes(make())
        with nothing_runs(place, command):
            assert run(command).code in codes


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [n for n, one in FORMATS.items() if one.file.endswith(".json")])
def test_no_text_is_run(place: Path, name: str, text: str) -> None:
    sound = json.loads((place / FORMATS[name].file).read_text())
    for keep in ((), ("X", "ph", "cpu_op", "kernel", "cuda_runtime", "Operator", "1.1.1")):
        made = planted(sound, lambda word, kept=keep: word if word in kept else text, keys=False)
        (place / "planted.json").write_text(json.dumps(made))
        for command in commands(name, ".json"):
            with nothing_runs(place, command):
                assert run(command).code in range(5)


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_a_model_or_script_is_run(place: Path, text: str) -> None:
    quoted = json.dumps(text)
    model = MODEL.replace('"s"', quoted).replace('"tower"', quoted).replace('"et.json#3"', quoted)
    (place / "planted.ir").write_text(model.replace('"## label ##"', quoted))
    script = SCRIPT.replace('"words"', quoted) + f"note {quoted}\nlet x = {quoted}\n"
    (place / "planted.irg").write_text(script)
    for command in (
        *commands("model", ".ir"),
        ("opt", "model.ir", "-s", "planted.irg"),
        ("opt", "model.ir", "-e", text),
        ("opt", "model.ir", "--pass", text),
        ("predict", "model.ir", "--indices", text),
    ):
        with nothing_runs(place, command):
            assert run(command).code in range(5)


@pytest.mark.long
@pytest.mark.parametrize(
    "planted_tables",
    [pickle.dumps(Payload()), b"[" * 100_000, b"[]", b"{}", json.dumps([CODE, CODE]).encode(), b""],
)
def test_kept_parser_tables_run_nothing(
    place: Path, tmp_path: Path, planted_tables: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load = grammars.load.__wrapped__
    load("model")
    (kept,) = (tmp_path / "irgraph").glob("*.json")
    kept.write_bytes(planted_tables)
    with nothing_runs(place, planted_tables[:40]):
        assert load("model").parse(MODEL)
    assert json.loads(kept.read_bytes()), "the tables were not built anew"
