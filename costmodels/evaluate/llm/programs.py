"""Programs of cases: captured once for each decoder, cached, and split over ranks."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

from msgspec.structs import asdict, replace

from costmodels.evaluate.llm.case import LlmCase
from costmodels.evaluate.llm.shape import Shape
from costmodels.evaluate.whole.program_cache import cached_program
from irgraph.api import run_script
from irgraph.capture.live import capture_file
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import with_ranks
from irgraph.ir.resize import with_dims
from irgraph.plans.plan import LayerScheme, Plan
from irgraph.verbs.sharding.shard import shard

DECODER = Path(__file__).with_name("decoder.py")

MACHINE = 8
"""Ranks of a machine."""

SCHEMES: dict[str, LayerScheme] = {
    "*.query": "column-parallel",
    "*.key": "column-parallel",
    "*.value": "column-parallel",
    "*.attention.out": "row-parallel",
    "*.up": "column-parallel",
    "*.down": "row-parallel",
}
"""Split of the linear layers of a block; ``GATE`` adds a gated perceptron."""

GATE: dict[str, LayerScheme] = {"*.gate": "column-parallel"}

CAPTURE_BATCH = 2
"""Batch of a capture whose sizes follow the batch."""


def ranks_text(ranks: int) -> str:
    """Return a number of ranks as machines times ranks on each."""
    return str(ranks) if ranks <= MACHINE else f"{ranks // MACHINE}x{MACHINE}"


def sharded_step(case: LlmCase, layers: int, keep: Path | None) -> Graph:
    """Return the step of a rank with sharded parameters, of a decoder with fewer layers."""
    shape = replace(case.shape, layers=layers)
    reshard = case.layout.sharding == "fsdp"
    options = f"reshard={reshard}, reduces_half={case.reduces_half}, "
    ranks = ranks_text(case.layout.data)
    name = f"train {_key(shape)} {case.batch} {ranks} {reshard} {case.reduces_half}"
    make = partial(_capture, f"train({options}{_arguments(shape)})", case.batch, ranks)
    if not case.is_compiled:
        return cached_program(keep, name, make)
    captured = partial(cached_program, keep, name, make)
    return cached_program(keep, f"{name} compiled", lambda: run_script(captured(), "compile").graph)


def micro_batch(case: LlmCase, layers: int, keep: Path | None) -> Graph:
    """Return forward and backward of a micro-batch on one card."""
    shape = replace(case.shape, layers=layers)
    graph = _symbolic(shape, keep)
    return with_dims(graph, {"B": case.batch})


def split_layers(graph: Graph, case: LlmCase) -> Graph:
    """Return a micro-batch of a rank that has parts of the layers, and the whole head."""
    tensor = case.layout.tensor
    schemes = SCHEMES | (GATE if case.shape.is_gated else {})
    pins = {"embedding": "split 1"} if case.layout.splits_sequence else {}
    split = shard(graph, Plan(tensor, layers=schemes, pins=pins), 0).graph
    return with_ranks(split, ranks_text(tensor))


@lru_cache(maxsize=16)
def _symbolic(shape: Shape, keep: Path | None) -> Graph:
    make = partial(_capture, f"micro_batch({_arguments(shape)})", CAPTURE_BATCH)
    return cached_program(keep, f"micro-batch {_key(shape)}", make)


def _capture(call: str, batch: int, ranks: str | None = None) -> Graph:
    symbolic = ranks is None
    return capture_file(f"{DECODER}:{call}", batch=batch, symbolic=symbolic, ranks=ranks).graph


def _arguments(shape: Shape) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in asdict(shape).items())


def _key(shape: Shape) -> str:
    return "-".join(str(value) for value in asdict(shape).values())
