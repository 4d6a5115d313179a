"""The timed steps: their programs, times and captured graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from costmodels.evaluate.timed.swept import SHIPPED
from costmodels.evaluate.whole.program_cache import cached_program
from costmodels.evaluate.whole.programs import import_with_torchvision
from irgraph.files import read_text
from irgraph.ir.graph import Graph

PROGRAMS = SHIPPED / "programs.py"
"""File of the programs, for ``irgraph capture FILE.py:NAME``."""

VISION = ("classify", "see")
"""Programs whose models are torchvision's."""


class Step(Struct, frozen=True):
    """A timed step: microseconds are medians, each step followed by a wait for the device.

    Attributes:
        program, batch, options: the function of ``programs.py`` and its arguments.
        how: ``""``, ``graph`` (a replayed CUDA graph) or ``compile`` (``torch.compile``).
        tf32: whether f32 products used the matrix units.
        bench: whether cuDNN tried its algorithms (``torch.backends.cudnn.benchmark``).
        time, low, high: median and quartiles of the step.
        host: median time until the host had launched everything.
        peak: maximum bytes of device memory of the step and its model.
        device: microseconds of all kernels and copies in a trace of the step, 0 without one.
    """

    program: str
    batch: int
    options: Mapping[str, Any]
    how: str
    tf32: bool
    bench: bool
    time: float
    low: float
    high: float
    host: float
    peak: int
    device: float = 0.0

    @property
    def name(self) -> str:
        """Name of the step in tables."""
        options = [f"{key}={value}" for key, value in self.options.items()]
        marks = [mark for mark, on in (("tf32", self.tf32), ("benchmark", self.bench)) if on]
        return ", ".join([f"{self.program} x {self.batch}", *options, *marks])

    @property
    def trains(self) -> bool:
        """Whether the step trains its model."""
        return self.program in ("classify", "gpt", "dlrm")

    @property
    def group(self) -> str:
        """Name of the step's group in tables."""
        if self.how:
            return {"graph": "CUDA graphs, replayed", "compile": "torch.compile"}[self.how]
        phase = "training" if self.trains else "inference"
        if self.program not in VISION:
            return f"{'GPT-2' if self.program in ('gpt', 'read') else 'DLRM'}, {phase}"
        layout = ", channels last" if self.options.get("last") else ""
        return f"classifiers, {phase}, {self.options.get('kind', 'f32')}{layout}"

    @property
    def traced_as(self) -> str:
        """Name of the model's host table, if a step of the same model was traced."""
        if self.program in VISION:
            return str(self.options.get("model", "resnet50"))
        return "gpt" if self.program in ("gpt", "read") else f"dlrm-{self.options['name']}"

    @property
    def target(self) -> str:
        """Target for ``irgraph capture``: ``FILE.py:NAME(OPTION=VALUE)``."""
        options = ",".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{PROGRAMS}:{self.program}({options})"

    def program_key(self) -> tuple[Any, ...]:
        """Return the key of the captured program: all values that it depends on."""
        return self.program, self.batch, self.tf32, json.dumps(self.options, sort_keys=True)

    def graph(self, keep: Path | None = None) -> Graph:
        """Return the captured program. Raises ``IrgraphError`` if it cannot be captured."""
        name = " ".join(map(str, self.program_key()))
        return cached_program(keep, name, self._captured)

    def _captured(self) -> Graph:
        from irgraph.capture.live import capture_file

        if self.program in VISION:
            import_with_torchvision("torchvision")
        with _allow_tf32(self.tf32):
            return capture_file(self.target, batch=self.batch, symbolic=False).graph


@contextmanager
def _allow_tf32(tf32: bool) -> Iterator[None]:
    """Enable or disable matrix units for f32 products; restore the setting at exit."""
    import torch

    settings = torch.backends.cuda.matmul
    original, settings.allow_tf32 = settings.allow_tf32, tf32
    try:
        yield
    finally:
        settings.allow_tf32 = original


STEP_FIELDS = {"program", "batch", "how", "tf32", "bench"}
MEASURED_FIELDS = {"step_us", "q", "host_us", "peak", "runs", "device_us"}


def steps_of(device: str) -> list[Step]:
    """Return the timed steps of a device."""
    rows = map(json.loads, read_text(SHIPPED / device / "steps.jsonl").splitlines())
    return [_step(row) for row in rows]


def _step(row: Mapping[str, Any]) -> Step:
    low, high = row["q"]
    options = {key: value for key, value in row.items() if key not in STEP_FIELDS | MEASURED_FIELDS}
    return Step(
        program=row["program"],
        batch=row["batch"],
        options=options,
        how=row["how"],
        tf32=row["tf32"],
        bench=row["bench"],
        time=row["step_us"],
        low=low,
        high=high,
        host=row["host_us"],
        peak=row["peak"],
        device=row.get("device_us", 0.0),
    )
