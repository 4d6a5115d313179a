"""Trains a model of one device on a file of ``irgraph measure``.

Every measured call is captured on torch's meta device, so that the model is trained on the same
ops that predictions price. On GPUs it learns kernel times; on a CPU, which has no separate
kernels, the op's time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.benchmarks.captured import captured
from costmodels.devices.sheet import DeviceSheet
from costmodels.families import learned_families
from costmodels.formulas.machine import Machine
from costmodels.formulas.software import software_profile
from costmodels.learned.correction import OwnModel, features, log_ratios, op_key
from costmodels.learned.files import Layers
from costmodels.learned.predictors import SOFTWARE, predictors
from costmodels.lookups.indices import Indices
from costmodels.lookups.rules import parse_distribution
from costmodels.measure.rows import read_rows
from costmodels.measure.run import torch_for
from costmodels.pricing.price import price
from costmodels.training.network import network, plain_layers
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

MIN_ROWS = 20
"""Minimum number of rows to train on."""
HOLD_OUT_ONE_IN = 5
"""Ratio of all rows to held-out rows, which are selected by a hash of their case."""
WIDTH, DEPTH, MEMBERS = 32, 2, 3
CHUNK = 250


class Sample(Struct, frozen=True):
    """A measured op: its kernels as priced by formulas, the machine, and measured microseconds."""

    key: str
    op: Op
    kernels: tuple[Kernel, ...]
    machine: Machine
    time: float

    @property
    def is_held_out(self) -> bool:
        """Whether the row is held out."""
        return hashlib.sha256(self.key.encode()).digest()[0] % HOLD_OUT_ONE_IN == 0


def samples(
    path: str | Path,
    family: str,
    sheet: DeviceSheet,
    progress: Callable[[int], None] | None = None,
) -> list[Sample]:
    """Return a family's rows of a file of measurements as priced ops.

    If a call runs the same op several times, each gets an equal share of the time. Rows without a
    time are omitted, and calls that launch work by different ops or by none.
    """
    head, rows = read_rows(path)
    on_gpu = str(head.get("device", "")).startswith("cuda")
    result = []
    for row in rows:
        timed = row.get("kernel_us" if on_gpu else "op_us")
        if row["family"] == family and timed:
            sample = _sample(row, sheet)
            result += [sample] if sample is not None else []
            if progress is not None:
                progress(1)
    return result


def _sample(row: Mapping[str, Any], sheet: DeviceSheet) -> Sample | None:
    """Return the priced op of one row, ``None`` if its call launches not exactly one kind of op."""
    torch_for("cpu")
    graph = captured(row)
    law = parse_distribution(row["indices"] or "uniform")
    indices, learned = Indices(default=law), predictors(sheet, SOFTWARE)
    priced = price(graph, sheet, software=SOFTWARE, learned=learned, indices=indices)
    ops = [op for op in graph.walk() if priced.kernels.get(op)]
    if len({(op_key(op), *(t.shape for t in op.inputs)) for op in ops}) != 1:
        return None
    machine = Machine(sheet, software_profile(SOFTWARE), learned=learned, indices=indices)
    time = row.get("kernel_us") or row["op_us"]  # a file of a CPU has no kernels
    time_per_op = float(time) / len(ops)
    return Sample(row["key"], ops[0], priced.kernels[ops[0]], machine, time_per_op)


def train_own(
    path: str | Path,
    family: str,
    sheet: DeviceSheet,
    *,
    seed: int = 0,
    steps: int = 2000,
    progress: Callable[[int], None] | None = None,
) -> OwnModel:
    """Train a correction of a family's formulas on a device's measurements.

    Raises:
        IrgraphError: the file has too few usable rows of the family.
    """
    rows = samples(path, family, sheet)
    if len(rows) < MIN_ROWS:
        message = f"{len(rows)} usable measurements of {family!r}: at least {MIN_ROWS} are needed"
        families = sorted({row["family"] for row in read_rows(path)[1]})
        hint = f"the file has measurements of: {', '.join(families) or 'nothing'}"
        learned = learned_families().get(family)
        measured_names = [
            name for name in families if learned is not None and name in learned.measured_as
        ]
        hint += f"; with a file it is {' or '.join(measured_names)}" if measured_names else ""
        raise fail(message, SourceSpan(str(path)), hint=hint, exit_code=2)
    ops = tuple(sorted({op_key(row.op) for row in rows}))
    inputs = np.stack([features(r.op, r.kernels, r.machine, ops) for r in rows], 1)
    base = np.asarray([sum(k.time for k in row.kernels) for row in rows], np.float32)
    times = np.asarray([row.time for row in rows], np.float32)
    target = np.log(times / base)
    held_out = np.asarray([row.is_held_out for row in rows])
    if held_out.all() or not held_out.any():
        held_out = np.arange(len(rows)) % HOLD_OUT_ONE_IN == 0
    training_inputs = inputs[:, ~held_out]
    mean, spread = training_inputs.mean(1), training_inputs.std(1)
    scale = np.where(spread > 1e-3, spread, 1.0).astype(np.float32)
    normalised = ((inputs - mean[:, None]) / scale[:, None]).astype(np.float32)
    layers = _fit(
        normalised[:, ~held_out], target[~held_out], seed, steps, progress or (lambda _: None)
    )
    low, high = training_inputs.min(1), training_inputs.max(1)
    clipped = (np.clip(inputs, low[:, None], high[:, None]) - mean[:, None]) / scale[:, None]
    errors = log_ratios(layers, clipped[:, held_out].astype(np.float32)).mean(0) - target[held_out]
    metadata = {
        "rows": int((~held_out).sum()),
        "held_out": int(held_out.sum()),
        "formula_pct": _errors(-target[held_out]),
        "model_pct": _errors(errors),
        "data_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "seed": seed,
        "steps": steps,
    }
    width = float(np.quantile(np.abs(errors), 0.9))
    return OwnModel(family, sheet.name, ops, layers, mean, scale, low, high, width, metadata)


def _errors(logarithms: NDArray[np.float32]) -> dict[str, float]:
    """Return mean, median and bias in percent of errors given as log(predicted / measured)."""
    errors = 100 * np.expm1(logarithms.astype(np.float64))
    sizes = np.abs(errors)
    return {
        "mape": float(sizes.mean()),
        "median": float(np.median(sizes)),
        "bias": float(errors.mean()),
    }


def _fit(
    inputs: NDArray[np.float32],
    target: NDArray[np.float32],
    seed: int,
    steps: int,
    report: Callable[[int], None],
) -> Layers:
    """Train an ensemble by full-batch AdamW on the mean absolute error of the logarithm."""
    import jax
    import jax.numpy as jnp
    import optax

    module = network(WIDTH, DEPTH, 1)
    rate = optax.warmup_cosine_decay_schedule(0.0, 5e-3, steps // 20, steps)
    optimizer = optax.adamw(rate, weight_decay=1e-3)
    data, labels = jnp.asarray(inputs.T), jnp.asarray(target)

    def loss(weights: Any) -> Any:  # noqa: ANN401  (JAX arrays)
        return jnp.abs(module.apply(weights, data)[:, 0] - labels).mean()

    def step(state: Any, _: Any) -> Any:  # noqa: ANN401  (JAX arrays)
        weights, memory = state
        change, memory = optimizer.update(jax.grad(loss)(weights), memory, weights)
        return (optax.apply_updates(weights, change), memory), None

    keys = jax.random.split(jax.random.key(seed), MEMBERS)
    weights = jax.vmap(lambda key: module.init(key, data[:1]))(keys)
    state = (weights, jax.vmap(optimizer.init)(weights))
    run = jax.jit(jax.vmap(lambda s: jax.lax.scan(step, s, None, length=CHUNK)[0]))
    for _ in range(0, steps, CHUNK):
        state = run(state)
        jax.block_until_ready(state)
        report(CHUNK)
    return plain_layers(state[0]["params"])
