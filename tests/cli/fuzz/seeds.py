"""A small sound file of every format, and the commands that read it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.capture.execution_trace.fuzz import rows
from tests.capture.execution_trace.traces import trace
from tests.capture.front_ends.examples import chakra, onnx
from tests.capture.kineto.builder import events, numbered, text
from tests.cli.fuzz import stores

MODEL = """model "m" { format = 2  dims = {B = 8}  source = "s"  captured_on = "cpu" }

device @gpu0 "v100"
input %in : f32[B, 4] in $b1
param %w "tower.weight" : f32[4, 4] in $b2
param %s : i64[2] in $b9 = [0, 2]

"## label ##"() {
  %out = aten.mm(%in, %w) : f32[B, 4] in $b3 in module "tower" from "et.json#3"
  aten.relu_(%out!) in module "tower"
  %x = aten.mul(%out, 2.5) : f32[B, 4] in $b4
  %y = aten.addmm(%x, %in, %w, beta=2) : f32[B, 4] in $b5
}
return %y
"""

SCRIPT = """pass tidy(n: int = 2) "words" {
  remove many %y = aten.mul(%x, 1) where %y.type == %x.type using %x for %y
  expect no aten.sub(_)
}
apply tidy(n = 3)
"""

MODEL_COMMANDS = (
    ("predict", "@", "--json"), ("predict", "@"), ("show", "@", "--json"), ("show", "@"),
    ("fmt", "@"), ("verify", "@"), ("opt", "@", "-s", "script.irg"), ("diff", "model.ir", "@"),
    ("diff", "@", "model.ir", "--json"), ("ranks", "@", "@"),
    ("opt", "@", "--pass", "drop-dropout"),
    ("anonymise", "@", "-o", "out"), ("opt", "@", "-s", "script.irg", "--diff", "--stats"),
    ("explore", "@", "model.ir", "--json", "graph.json"), ("predict", "@", "--chakra", "step.0.et"),
    ("reduce", "@", "-s", "script.irg", "--most", "2"), ("bisect", "@", "-s", "script.irg"),
)  # fmt: skip
TRACE_COMMANDS = (
    ("analyze", "@", "--json"), ("analyze", "@"), ("replay", "@", "--json"), ("replay", "@"),
    ("roofline", "@", "--json"), ("roofline", "@"),
    ("analyze", "@", "--show", "queues", "--show", "launches", "--show", "memory"),
    ("analyze", "@", "--show", "sequences", "--show", "path"),
    ("overheads", "@", "--json"), ("lower", "@"), ("anonymise", "@", "-o", "out"),
    ("overheads", "@", "-o", "table.json"), ("analyze", "@", "kineto.json"),
    ("lower", "et.json", "--kineto", "@"), ("replay", "@", "--overheads", "kineto.json"),
    ("predict", "model.ir", "--recorded", "@"), ("overheads", "@", "--compare", "host.json"),
)  # fmt: skip
LOWERED = (("lower", "@"), ("lower", "@", "--name", "x"), ("lower", "@", "--step", "1"))
SHEETS = (("predict", "model.ir", "--device", "@", "--json"),
          ("predict", "model.ir", "--device", "@"),
          ("diff", "model.ir", "model.ir", "--device", "@"))  # fmt: skip
TABLES = (("predict", "model.ir", "--host", "@", "--json"), ("overheads", "@"),
          ("overheads", "@", "host.json", "--json"), ("overheads", "kineto.json", "--compare", "@"),
          ("replay", "kineto.json", "--overheads", "@"))  # fmt: skip
FABRICS = (("predict", "model.ir", "--ranks", "2", "--fabric", "@", "--json"),)
DATABASES = (("db", "list", "--db", "@"), ("db", "hosts", "--figures", "--db", "@", "--json"),
             ("db", "kernels", "--db", "@", "--json"), ("db", "export", "--db", "@"),
             ("db", "steps", "--db", "@"), ("db", "init", "--db", "@"),
             ("db", "add", "host.json", "--db", "@"))  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A format: the name of its sound file, who writes that, and the commands that read it.

    Attributes:
        framed: whether a file that lost its end shows it.
        records: the key of its list of numbered records, if it has one.
        place: the file that commands read, if it is not theirs to name.
        change: what changes values in a file of the format, in place.
        hashed: whether other figures without a word are a failure, whatever was damaged.
    """

    file: str
    write: Callable[[Path], object]
    commands: tuple[tuple[str, ...], ...]
    framed: bool = True
    records: str = ""
    place: str = ""
    change: Callable[[Path, random.Random], None] | None = None
    hashed: bool = False


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


def _shipped(name: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(Path(name).read_bytes())


def _recorded(path: Path) -> None:
    """Write an execution trace whose records are numbered, as torch does."""
    found = json.loads(trace(*rows(), version="1.1.1"))
    for number, node in enumerate(found["nodes"]):
        node["attrs"].append({"name": "rf_id", "type": "uint64", "value": number})
    path.write_text(json.dumps(found))


def _weights(path: Path) -> None:
    """Write a network for products on the V100, as `irgraph train` makes them."""
    import numpy as np

    from costmodels.learnable.call_inputs import InputLayout
    from costmodels.learned.correction import OwnModel, save_own

    keys = ("product f32 nn single", "product f32 nn single network")
    layout = InputLayout(4, ("product",))
    zeros, ones = np.zeros(layout.count, "f4"), np.ones(layout.count, "f4")
    layers = ((np.zeros((1, 1, layout.count), "f4"), np.full((1, 1), 0.5, "f4")),)
    ranges = 99 * np.ones((len(keys), layout.ranged), "f4")
    by_form = np.ones(len(keys), "f4")
    save_own(
        OwnModel(
            "gemm",
            "V100-SXM2-16GB",
            keys,
            layout,
            layers,
            zeros,
            ones,
            -ranges,
            ranges,
            0.1 * by_form,
            by_form,
            {"rows": 9},
        ),
        path,
    )


def _program(path: Path) -> None:
    """Write an exported program without torch's help: making one takes ten seconds."""
    from tests.capture.front_ends.examples import export

    export(path)


FORMATS = {
    "model": Format("model.ir", _text(MODEL), MODEL_COMMANDS, framed=False),
    "script": Format("script.irg", _text(SCRIPT), (("opt", "model.ir", "-s", "@"),), framed=False),
    "kineto": Format(
        "kineto.json", _text(text(numbered(events()))), TRACE_COMMANDS, records="traceEvents"
    ),
    "execution trace": Format(
        "et.json", _recorded,
        (*LOWERED, ("anonymise", "@", "-o", "out"), ("lower", "@", "--kineto", "kineto.json")),
        records="nodes",
    ),
    "ONNX": Format("m.onnx", onnx, (*LOWERED, ("lower", "@", "--dim", "batch=3"))),
    "Chakra trace": Format("step.et", chakra, LOWERED, framed=False),
    "exported program": Format("m.pt2", _program, LOWERED),
    "sheet": Format("sheet.json", _shipped("costmodels/devices/v100-sxm2-16gb.json"), SHEETS),
    "host table": Format(
        "host.json", _shipped("costmodels/hosts/rtx2080ti-mlp-profiled.json"), TABLES
    ),
    "weights": Format("w.safetensors", _weights, (("predict", "model.ir", "--weights", "@"),)),
    "indices": Format(
        "tables.json", _text(json.dumps({"*": [[2, 3], [4, 1]]})),
        (("predict", "model.ir", "--indices", "@"),),
    ),
    "fabric": Format("links.json", stores.fabric, FABRICS, framed=False),
    "measurements": Format(
        "m.jsonl", stores.measurements,
        (("db", "add", "@", "--db", "empty.db"), ("predict", "plain.ir", "--weights", "@")),
        framed=False,
    ),
    "space": Format(
        "space.toml", stores.space,
        (("tune", "plain.ir", "--space", "@", "--trials", "1", "--seed", "1", "--json"),
         ("tune", "plain.ir", "--space", "@", "--explain")), framed=False,
    ),
    "database": Format(
        "team.db", stores.database, DATABASES, framed=False, change=stores.odd_cells
    ),
    "export": Format(
        "export.jsonl", stores.exported, (("db", "import", "@", "--db", "empty.db"),), framed=False
    ),
    "sweep": Format(
        "sound.parquet", stores.sweep_part, (stores.SWEEP,), place="swept/part-0000000.parquet",
        change=stores.odd_figures, hashed=True,
    ),
    "study": Format(
        "study.db", stores.study, ((*stores.TUNE, "--storage", "sqlite:///damaged.db"),),
        framed=False, place="damaged.db", change=stores.odd_cells,
    ),
}  # fmt: skip

NINES = "9" * 5000
ODD = (
    "", "0", "-1", "1e309", "nan", NINES, "B=" + NINES, "B=0", "B=-1", "B=3", "=", "x" * 3000,
    "\x1b[31m",
    "\u202e", "\udc80", "é", "a,b", "2x", "0x0", f"{NINES}x2", "1:0", f"{NINES}:", "4GiB",
    f"{NINES}GiB", "step.time=9ms", f"step.time={NINES}ms", "error=nan%", "none", "v100",
    "v100@1e9",
    "v100@0", f"v100@{NINES}", "loop/loop", "model.ir", ".", "/dev/null", "-", "--", "\n", "%s",
    "{0}",
    "zipf:1e400", "zipf:" + NINES, "0,0", f"{NINES},1", "all", "7=7.5ms", f"7={NINES}ms", "a(b=",
    "drop-dropout(x=1)", "(" * 5000,
)  # fmt: skip
"""Values that options are given."""

OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("predict", "model.ir"): ("--device", "--host", "--dim", "--mode", "--software", "--accounting",
        "--indices", "--weights", "--ranks", "--fabric", "--measured", "--limit", "--recorded",
        "--chakra"),
    ("opt", "model.ir"): ("--pass", "-s", "--pass-path", "--dim", "--device", "--host", "--ranks",
        "--print-after", "--stop-after", "-o"),
    ("diff", "model.ir", "model.ir"): ("--device", "--dim", "--measured-before", "--ranks"),
    ("ranks", "model.ir"): ("--late", "--ranks", "--fabric", "--dim", "--chakra"),
    ("show", "model.ir"): ("--depth", "--module", "--phase", "--svg"),
    ("explore", "model.ir", "--json", "graph.json"): ("--device", "--dim", "--ranks", "--port"),
    ("analyze", "kineto.json"): ("--longest", "--steps", "--step-mark", "--skip-cat", "--memory"),
    ("replay", "kineto.json"): ("--overheads", "--outliers", "--limit", "--steps", "--memory"),
    ("overheads", "kineto.json"): ("--name", "--outliers", "--profiler", "--compare", "--longest",
        "--steps", "--memory", "-o"),
    ("lower", "et.json"): ("--step", "--kineto", "--name", "--dim", "-o"),
    ("anonymise", "et.json", "-o", "out"): ("--hash", "-o"),
    ("check", "model.ir", "absent.ir"): ("--dim", "--seed", "--rows", "--limit"),
    ("passes",): ("--pass-path",),
    ("capture",): ("--batch", "--device"),
}  # fmt: skip
"""Options that take a value, by the command."""
