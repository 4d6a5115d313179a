"""Records a user's step: its traces, and its time without a profiler."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from irgraph.capture.live.target import StepFunction, load_target, user_error
from irgraph.capture.recording.clock import host_clock
from irgraph.capture.recording.folder import EXECUTION_TRACE, FIGURES, KINETO_TRACE
from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import check_writable

_BLOCK, _TAIL = 1 << 20, 64
"""Bytes to read in one block of a file, and bytes of its end to check."""


class Recording(Struct, frozen=True):
    """Figures of a recorded step.

    Attributes:
        target, batch, device: the recorded step, its batch size, and torch's name of the device.
        step_time_us: median time of a step without a profiler, in microseconds.
        profiled_us: median time of a step with the profiler, in microseconds.
        times_us: time of every step without a profiler, in microseconds.
        torch: version of torch.
        device_name: name of the accelerator, ``""`` on the CPU.
    """

    target: str
    batch: int
    device: str
    step_time_us: float
    profiled_us: float
    times_us: tuple[float, ...]
    torch: str
    device_name: str = ""


def record(
    target: str,
    folder: str | Path,
    *,
    batch: int,
    device: str = "cpu",
    steps: int = 5,
    runs: int = 20,
) -> Recording:
    """Run the step built by ``FILE.py:NAME``, and write its traces and figures to a folder.

    Three warm-up steps come first, then ``runs`` steps without a profiler, one with the execution
    trace observer, and ``steps`` with the profiler, with shapes.

    Raises:
        IrgraphError: torch or the device is missing, the target failed, or the folder cannot be
            written.
    """
    need_torch(device)
    loaded_target = load_target(target)

    def make() -> Callable[[], object]:
        return _with_user_errors(loaded_target, loaded_target.step(batch, device))

    title = f"{Path(loaded_target.path).name}:{loaded_target.name}"
    return record_step(make, title, folder, batch=batch, device=device, steps=steps, runs=runs)


def record_step(
    make: Callable[[], Callable[[], object]],
    title: str,
    folder: str | Path,
    *,
    batch: int,
    device: str = "cpu",
    steps: int = 5,
    runs: int = 20,
) -> Recording:
    """Record the step returned by ``make``, as ``record`` does; ``title`` is the target's name."""
    output_folder = Path(folder)
    try:
        output_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(
            f"cannot make the folder: {error.strerror}", SourceSpan(str(output_folder))
        ) from None
    for name in (EXECUTION_TRACE, KINETO_TRACE, FIGURES):
        check_writable(output_folder / name)
    step, time_step = make(), step_timer(device)
    for _ in range(3):
        step()
    times = tuple(time_step(step) for _ in range(runs))
    with _atomic_folder(output_folder) as unfinished:
        _observe(step, unfinished / EXECUTION_TRACE)
        profiled = _profile(step, time_step, unfinished / KINETO_TRACE, steps, device)
        result = Recording(
            title,
            batch,
            device,
            round(statistics.median(times), 3),
            round(profiled, 3),
            times,
            *_versions(device),
        )
        text = json.dumps(asdict(result), indent=1) + "\n"
        (unfinished / FIGURES).write_text(text, encoding="utf-8")
    return result


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, whose files are moved to ``folder`` once all are complete.

    Torch writes its traces itself and does not report failures, so the end of each file is checked.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".irgraph-", dir=folder) as name:
            unfinished = Path(name)
            yield unfinished
            _move_files(unfinished, folder)
    except OSError as error:
        name = Path(error.filename).name if error.filename else ""
        raise fail(error.strerror or str(error), SourceSpan(str(folder / name))) from None


def _move_files(unfinished: Path, folder: Path) -> None:
    files = (EXECUTION_TRACE, KINETO_TRACE, FIGURES)
    incomplete = next((file for file in files if not _is_complete(unfinished / file)), "")
    if incomplete:
        raise fail(
            "could not be written whole: is the disk full?", SourceSpan(str(folder / incomplete))
        )
    for file in files:
        (unfinished / file).replace(folder / file)


def _is_complete(path: Path) -> bool:
    """Return whether a JSON file, gzipped or not, ends like an object."""
    end = b""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while block := file.read(_BLOCK):
                end = (end + block)[-_TAIL:]
    except (OSError, EOFError, zlib.error):
        return False
    return end.rstrip().endswith(b"}")


def need_torch(device: str) -> None:
    """Raise ``IrgraphError`` if torch or the device is missing."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the observer warns that it observes
    if find_spec("torch") is None:
        raise fail("recording needs PyTorch", hint="pip install irgraph[torch]", exit_code=2)
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise fail("there is no CUDA device here", hint="record with --device cpu", exit_code=2)


def _with_user_errors(target: StepFunction, step: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        try:
            return step()
        except Exception as error:
            raise user_error(f"{target.name} failed", error, target.path) from error

    return run


def step_timer(device: str) -> Callable[[Callable[[], object]], float]:
    """Return a function that runs a step and returns its microseconds, device work included."""
    import torch

    on_card = device.startswith("cuda")
    wait: Callable[[], object] = torch.cuda.synchronize if on_card else lambda: None
    clock = time.perf_counter_ns if on_card else host_clock(torch)

    def time_step(step: Callable[[], object]) -> float:
        wait()
        start = clock()
        step()
        wait()
        return (clock() - start) / 1e3

    return time_step


def _observe(step: Callable[[], object], path: Path) -> None:
    from torch.profiler import ExecutionTraceObserver

    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    try:
        step()
    finally:
        observer.stop()
        observer.unregister_callback()


def _profile(
    step: Callable[[], object],
    time_step: Callable[[Callable[[], object]], float],
    path: Path,
    steps: int,
    device: str,
) -> float:
    """Write the Kineto trace of ``steps`` steps; return their median time in microseconds."""
    from torch.profiler import ProfilerActivity, profile, schedule

    kinds = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        kinds.append(ProfilerActivity.CUDA)
    times = []

    def export(profiler: Any) -> None:  # noqa: ANN401
        profiler.export_chrome_trace(str(path))

    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(
        activities=kinds, record_shapes=True, schedule=plan, on_trace_ready=export
    ) as profiler:
        for _ in range(steps + 1):
            times.append(time_step(step))
            profiler.step()
    return statistics.median(times[1:])


def _versions(device: str) -> tuple[str, str]:
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else ""
    return str(torch.__version__), str(name)
