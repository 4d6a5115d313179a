"""Runs a sweep: within a time budget, resumable, and safe against running out of memory.

The file is JSON lines: first a description of the machine, then one line per case with the fields
of ``Case`` and of ``Timing``, the latter with the suffix ``_us`` for microseconds. A line is
written as soon as its case is done, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from costmodels.benchmarks.bench import Bench, Case
from costmodels.benchmarks.sweep import Sweep
from costmodels.families import learned_families, sweeps
from costmodels.measure.rows import FORMAT, read_rows
from costmodels.measure.timer import RUNS, measure_call
from irgraph.diagnostics import SourceSpan, fail, suggestion


@dataclass(slots=True)
class Run:
    """Numbers of a sweep's cases: measured now, those of them that failed, and not started."""

    new: int = 0
    failed: int = 0
    unstarted: int = 0


def measure(
    families: Iterable[str],
    device: str,
    path: str | Path,
    *,
    count: int = 100,
    budget: float = 600.0,
    seed: int = 0,
    dtypes: tuple[str, ...] = ("f32",),
    runs: int = RUNS,
    progress: Callable[[Case], None] | None = None,
) -> Run:
    """Measure cases of families on a torch device, append to a file, return the numbers of cases.

    Args:
        families: names of sweeps (``costmodels.families.sweeps``).
        device: a torch device, such as ``cpu`` or ``cuda``.
        path: the file to write or to continue.
        count: cases of each family.
        budget: seconds after which no new case starts.
        seed: of sizes and values.
        dtypes: data types, as in ``Case``.
        runs: number of timed calls of each case.
        progress: called with each case before it is measured, also if it is in the file already.

    Raises:
        IrgraphError: a family is unknown, torch or the device is missing, or the file was written
            on another device or is not a file of measurements.
    """
    if not (math.isfinite(budget) and budget >= 0):
        raise fail(f"the budget is {budget} seconds: give a number from 0", exit_code=2)
    plans = ((name, _sweep_named(name)) for name in families)
    cases = [case for name, sweep in plans for case in sweep.plan(name, count, seed, dtypes)]
    torch = torch_for(device)
    path = Path(path)
    done = resume(path, describe(torch, device, seed))
    end = time.monotonic() + budget
    outcome = Run()
    with path.open("a", encoding="utf-8") as file, current(torch, device):
        for case in cases:
            if progress is not None:
                progress(case)
            if case.key in done:
                continue
            if time.monotonic() > end:
                outcome.unstarted += 1
                continue
            row = {**asdict(case), "key": case.key, **_timed(torch, device, case, seed, runs)}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            outcome.new += 1
            outcome.failed += "error" in row
    return outcome


def current(torch: Any, device: str) -> AbstractContextManager[Any]:  # noqa: ANN401  (the module)
    """Return a context in which a GPU is the current device, for events without one."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


def describe(torch: Any, device: str, seed: int) -> dict[str, Any]:  # noqa: ANN401  (the module)
    """Return the head of a file of measurements: device, versions and seed."""
    head: dict[str, Any] = {"format": FORMAT, "device": device, "seed": seed}
    head |= {"torch": torch.__version__, "python": platform.python_version()}
    if device.startswith("cuda"):
        card = torch.cuda.get_device_properties(device)
        head |= {
            "name": card.name,
            "cuda": torch.version.cuda,
            "driver": nvidia_smi("driver_version", card),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "tf32_convolutions": torch.backends.cudnn.allow_tf32,
        }
    else:
        head |= {"name": platform.processor() or platform.machine()}
        head |= {"threads": torch.get_num_threads()}
    return head


def sheet_name(head: Mapping[str, Any]) -> str:
    """Return the name that ``calibrate`` gives to the device of a file of measurements."""
    if str(head["device"]).startswith("cuda"):
        return str(head["name"]).replace(" ", "-")
    return f"cpu-{head['name']}-{head.get('threads', 0)}"


def resume(path: Path, head: Mapping[str, Any]) -> set[str]:
    """Return the keys of the cases in a file; create the file if it does not exist.

    Raises ``IrgraphError`` if it was written on another device, or is not a file of measurements.
    """
    if path.exists() and not path.is_file():
        raise fail(
            "not a regular file: a run could not be continued from it", SourceSpan(str(path))
        )
    if not path.exists() or not path.read_bytes().strip():
        path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        return set()
    before, rows = read_rows(path)
    for name in ("device", "name", "torch", "seed"):
        original, requested = before.get(name), head.get(name)
        if original != requested:
            raise fail(
                f"cannot continue: the file's {name} is {original!r}, not {requested!r}",
                SourceSpan(str(path)),
                hint="give another file with -o",
                exit_code=2,
            )
    records = [before, *rows]
    path.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records), "utf-8")
    return {row["key"] for row in rows}


def _timed(torch: Any, device: str, case: Case, seed: int, runs: int) -> dict[str, Any]:  # noqa: ANN401
    """Return the timing of a case, or its error."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    try:
        call = sweeps()[case.family].ops[case.op](Bench(torch, device, case, seed))
        return measure_call(torch, device, call, runs).as_row()
    except (RuntimeError, MemoryError, ValueError) as error:
        return {"error": str(error).splitlines()[0][:200] if str(error) else type(error).__name__}


def _sweep_named(name: str) -> Sweep:
    if name in sweeps():
        return sweeps()[name]
    learned = learned_families().get(name)
    suffix = suggestion(name, sweeps())
    if learned is not None and learned.measured_as:
        suffix = f"; irgraph train calls {' and '.join(learned.measured_as)} so"
    message = f"nothing to measure is called {name!r}{suffix}"
    raise fail(message, hint=f"known: {', '.join(sweeps())}", exit_code=2)


def torch_for(device: str) -> Any:  # noqa: ANN401  (the module)
    """Return torch. Raises ``IrgraphError`` if torch or the device is missing."""
    try:
        import torch
    except ImportError:
        hint = "pip install 'irgraph[torch]'"
        raise fail(
            "measuring needs torch, which is not installed", hint=hint, exit_code=2
        ) from None
    kind, _, number = device.partition(":")
    device_count = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(kind, 0)
    if not (number or "0").isdecimal() or int(number or 0) >= device_count:
        raise fail(f"torch has no device {device!r} here", hint="cpu always works", exit_code=2)
    return torch


def nvidia_smi(field: str, card: Any) -> str:  # noqa: ANN401  (torch's properties of a card)
    """Return a property of a card from the driver's tool, ``""`` if the tool fails."""
    import subprocess

    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    if getattr(card, "uuid", ""):
        query.append(f"--id=GPU-{card.uuid}")
    try:
        output = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        return output.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""
