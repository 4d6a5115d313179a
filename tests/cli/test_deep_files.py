"""Files of 100,000 brackets: refused or passed over, in every command that reads a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.fuzz.harness import Case, judged
from tests.cli.fuzz.seeds import FORMATS

N = 100_000
LISTS, OBJECTS = b"[" * N + b"]" * N, b'{"a":' * N + b"1" + b"}" * N
EVENT = (
    b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "args": %s}]}'
)
MODEL = b'model "m" { format = 2 }\n'

JSON = {
    "open": b"[" * N,
    "lists": LISTS,
    "objects": OBJECTS,
    "events": b'{"traceEvents": ' + LISTS + b"}",
    "arguments": EVENT % OBJECTS,
    "shapes": EVENT % (b'{"Input Dims": ' + LISTS + b', "Input type": ["float"]}'),
    "shapes of a usual depth": EVENT % (b'{"Input Dims": ' + b"[" * 900 + b"]" * 900 + b"}"),
    "header": b'{"schemaVersion": 1, "x": ' + OBJECTS + b', "traceEvents": [{"ph": "X", "ts": 1}]}',
    "nodes": b'{"schema": "1.1.1", "nodes": ' + LISTS + b"}",
    "values": b'{"schema": "1.1.1", "nodes": [{"id": 1, "name": "a", "inputs": ' + LISTS + b"}]}",
    "table": b'{"format": 1, "T1": {}, "name": "x", "t1": ' + OBJECTS + b"}",
    "plan": b'{"format": 1, "ranks": 2, "tables": ' + OBJECTS + b"}",
    "laws": b'{"*": ' + LISTS + b"}",
}
TEXT = {
    "bodies": MODEL + b"{" * N,
    "sizes": MODEL + b"input %x : f32[" + b"(" * N + b"1" + b")" * N + b"] in $b\n",
    "values": MODEL + b"aten.f(" + LISTS + b")\n",
    "statements": b"if x {" * N + b"}" * N,
    "expression": b"let x = " + b"(" * N,
    "signs": b"let x = " + b"-" * N + b"1",
    "calls": b"remove " + b"a.b(" * N + b")" * N,
}
OTHERS = (
    ("compare", "@", "kineto.json"), ("compare", "kineto.json", "@"),
    ("opt", "model.ir", "-s", "@"), ("predict", "model.ir", "--weights", "@"),
    ("predict", "model.ir", "--indices", "@"), ("check", "model.ir", "@"),
    ("train", "gemm", "--data", "@", "-o", "w2.safetensors"),
    ("plan", "@", "--ranks", "2", "--memory", "4GiB"), ("measure", "@", "--device", "cpu"),
    ("opt", "model.ir", "-e", 'shard by "@" for rank 0'), ("record", "@", "-o", "recorded"),
)  # fmt: skip
TEXT_COMMANDS = (
    ("show", "@"), ("opt", "model.ir", "-s", "@"), ("check", "model.ir", "@"), ("lower", "@"),
    ("anonymise", "@", "-o", "out"), ("plan", "@", "--ranks", "2", "--memory", "4GiB"),
)  # fmt: skip
JSON_COMMANDS = {
    command: None
    for one in FORMATS.values()
    for command in (*one.commands, *OTHERS)
    if command[0] not in ("reduce", "bisect")  # these begin as `opt` does
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [f"{kind}.json" for kind in JSON] + [f"{kind}.ir" for kind in TEXT]
)
def test_no_command_fails(place: Path, name: str) -> None:
    kind, _, suffix = name.rpartition(".")
    (place / name).write_bytes(JSON[kind] if suffix == "json" else TEXT[kind])
    for command in JSON_COMMANDS if suffix == "json" else TEXT_COMMANDS:
        arguments = tuple(word.replace("@", name) for word in command)
        outcome, wrong = judged(Case("deep", arguments), {})
        assert not wrong, (arguments, wrong)
        assert outcome.startswith("exit")
