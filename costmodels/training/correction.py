"""Trains a model of one device on a file of ``irgraph measure``.

Every measured call is captured on torch's meta device, so that the model is trained on the same
ops that predictions price. On GPUs it learns kernel times, between those repeated and those on a
cold cache if both were measured; on a CPU, which has no separate kernels, the op's time.

Each network of an ensemble is trained without one part of the rows. The errors on these rows give
the intervals, and are reported.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.benchmarks.captured import captured
from costmodels.devices.sheet import DeviceSheet
from costmodels.families import learned_families
from costmodels.formulas.machine import Machine
from costmodels.formulas.software import software_profile
from costmodels.learnable.call_inputs import Doubles, InputLayout
from costmodels.learnable.hardware import Floats
from costmodels.learned.call_forms import CallForm
from costmodels.learned.correction import OwnModel, form_of_priced
from costmodels.learned.files import Layers
from costmodels.learned.infer import forward
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
MIN_FORM_ROWS = 5
"""Minimum number of rows of a form that is corrected."""
MIN_WIDTH_ROWS = 30
"""Minimum number of rows of a form whose interval depends on them alone."""
PARTS = 5
"""Number of parts of the rows, one for each network of the ensemble."""
MAIN_SHARE = 0.5
"""Minimum share of a call's time of the one form that the rest of it only surrounds."""
MIN_REMAINDER = 0.05
"""Minimum share of a measured time that remains without the rest of its call."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a correction to choose from; with 0 the formula of a form answers unchanged."""
LEVEL = 0.9
"""Share of rows that an interval contains."""
WIDTH, DEPTH = 32, 2
BATCH, RATE, DECAY = 256, 3e-3, 0.3
NOISE = 0.1
"""Standard deviation of the noise that is added to inputs, in standard deviations of each."""
PULL = 0.05
"""Weight of the distance from the time on a cold cache: most operands of a step are not cached.

The distance from the nearest time has weight 1."""
CHUNK = 250


class Sample(Struct, frozen=True):
    """A measured call of one form.

    Attributes:
        key: key of its row.
        form: its form.
        time: microseconds of its kernels by formula.
        low, high: measured microseconds of these kernels: repeated, and on a cold cache.
        surroundings: microseconds by formula of the rest of the row's ops, for each such call.
    """

    key: str
    form: CallForm
    time: float
    low: float
    high: float
    surroundings: float = 0.0

    @property
    def part(self) -> int:
        """The part of the rows that it belongs to, by a hash of its row's key."""
        return hashlib.sha256(f"part {self.key}".encode()).digest()[0] % PARTS


def samples(
    path: str | Path,
    family: str,
    sheet: DeviceSheet,
    select: Callable[[str], bool] = lambda _: True,
) -> list[Sample]:
    """Return a family's rows of a file of measurements as priced calls.

    Rows without a time are omitted, and calls that launch no work. ``select`` chooses rows by key.
    """
    head, rows = read_rows(path)
    time_name = "kernel_us" if str(head.get("device", "")).startswith("cuda") else "op_us"
    result = []
    for row in rows:
        if row["family"] == family and row.get(time_name) and select(row["key"]):
            low, high = sorted((row[time_name], row.get("cold_us") or row[time_name]))
            result += _samples_of_row(row, (low, high), sheet)
    return result


def _samples_of_row(
    row: Mapping[str, Any], measured: tuple[float, float], sheet: DeviceSheet
) -> list[Sample]:
    """Return a sample of each form of a row's main work, whose calls share the measured time.

    The main work is one form if it takes most of the time, as attention between the paddings of
    its heads, and all ops otherwise, as in an optimizer's step.
    """
    priced = _priced_forms(row, sheet)
    time_by_key: dict[str, float] = {}
    for form, kernels in priced:
        time_by_key[form.key] = time_by_key.get(form.key, 0.0) + _time(kernels)
    total = sum(time_by_key.values())
    if not total:
        return []
    main, main_time = max(time_by_key.items(), key=lambda item: item[1])
    keys = {main} if main_time >= MAIN_SHARE * total else set(time_by_key)
    main_time = sum(time_by_key[key] for key in keys)
    rest = total - main_time
    low, high = (max(time - rest, MIN_REMAINDER * time) / main_time for time in measured)
    form_by_key = {form.key: (form, _time(kernels)) for form, kernels in reversed(priced)}
    return [
        Sample(row["key"], form, time, low * time, high * time, rest * time / main_time)
        for key, (form, time) in form_by_key.items()
        if key in keys and time > 0
    ]


def _time(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.time for kernel in kernels)


def _priced_forms(
    row: Mapping[str, Any], sheet: DeviceSheet
) -> list[tuple[CallForm, tuple[Kernel, ...]]]:
    """Return the forms of the ops of a row's call that launch work, with their kernels."""
    torch_for("cpu")
    graph = captured(row)
    law = parse_distribution(row["indices"] or "uniform")
    indices, learned = Indices(default=law), predictors(sheet, SOFTWARE)
    priced = price(graph, sheet, software=SOFTWARE, learned=learned, indices=indices)
    pinned = graph.settings.get("pinned") is True
    profile = software_profile(SOFTWARE)
    machine = Machine(sheet, profile, pinned=pinned, learned=learned, indices=indices)
    ops: list[Op] = [op for op in graph.walk() if priced.kernels.get(op)]
    pairs = ((form_of_priced(op, priced.kernels[op], machine), priced.kernels[op]) for op in ops)
    return [(form, kernels) for form, kernels in pairs if form is not None]


def train_own(
    path: str | Path,
    family: str,
    sheet: DeviceSheet,
    *,
    seed: int = 0,
    steps: int = 2500,
    progress: Callable[[int], None] | None = None,
) -> OwnModel:
    """Train a correction of a family's formulas on a device's measurements.

    Raises:
        IrgraphError: the file has too few usable rows of the family.
    """
    rows = samples(path, family, sheet)
    if len(rows) < MIN_ROWS:
        raise _too_few_rows(path, family, len(rows))
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    model = fit_correction(rows, family, sheet, seed=seed, steps=steps, progress=progress)
    return replace(model, made={**model.made, "data_sha256": digest})


def _too_few_rows(path: str | Path, family: str, count: int) -> Exception:
    message = f"{count} usable measurements of {family!r}: at least {MIN_ROWS} are needed"
    families = sorted({row["family"] for row in read_rows(path)[1]})
    hint = f"the file has measurements of: {', '.join(families) or 'nothing'}"
    learned = learned_families().get(family)
    measured_names = [
        name for name in families if learned is not None and name in learned.measured_as
    ]
    hint += f"; with a file it is {' or '.join(measured_names)}" if measured_names else ""
    return fail(message, SourceSpan(str(path)), hint=hint, exit_code=2)


def fit_correction(
    rows: Sequence[Sample],
    family: str,
    sheet: DeviceSheet,
    *,
    seed: int = 0,
    steps: int = 2500,
    progress: Callable[[int], None] | None = None,
) -> OwnModel:
    """Return the correction that is trained on samples; rare forms are left out."""
    counts = Counter(row.form.key for row in rows)
    common = [row for row in rows if counts[row.form.key] >= MIN_FORM_ROWS] or list(rows)
    table = _Table(common, sheet.sms)
    layers = _fit(table, seed, steps, progress or (lambda _: None))
    ratios = forward(layers, table.normalised)[:, 0]
    unseen = ratios[table.parts, np.arange(len(common))]
    trust = table.trust(unseen)
    unseen = unseen * trust[table.index]
    metadata = {
        "rows": len(common),
        "held_out": len(common),
        "formula_pct": _errors(table.log_errors(np.zeros(len(common)))),
        "model_pct": _errors(table.log_errors(unseen)),
        "seed": seed,
        "steps": steps,
    }
    return OwnModel(
        family,
        sheet.name,
        table.keys,
        table.layout,
        layers,
        table.mean,
        table.scale,
        *table.ranges(),
        table.widths(unseen),
        trust,
        metadata,
    )


class _Table:
    """Samples as arrays: inputs, targets and the measured range of each."""

    def __init__(self, rows: Sequence[Sample], sms: int) -> None:
        self.rows = rows
        self.keys = tuple(sorted({row.form.key for row in rows}))
        words = tuple(sorted({word for row in rows for word in row.form.words}))
        self.layout = InputLayout(max(len(row.form.sizes) for row in rows), words)
        self.inputs = np.concatenate([_inputs(row, self.layout, sms) for row in rows], 1)
        self.index = np.asarray([self.keys.index(row.form.key) for row in rows])
        self.parts = np.asarray([row.part for row in rows])
        if len(set(self.parts.tolist())) < PARTS:
            self.parts = np.arange(len(rows)) % PARTS
        self.low, self.high, self.time, self.rest = (
            np.asarray([getattr(row, name) for row in rows])
            for name in ("low", "high", "time", "surroundings")
        )
        self.mean, deviation = self.inputs.mean(1), self.inputs.std(1)
        self.scale = np.where(deviation > 1e-3, deviation, 1.0).astype(np.float32)
        self.normalised = (self.inputs - self.mean[:, None]) / self.scale[:, None]

    def log_errors(self, ratios: NDArray[Any]) -> Doubles:
        """Return log(predicted / nearest measured) of logarithms of factors."""
        predicted = self.time * np.exp(ratios.astype(np.float64)) + self.rest
        nearest = np.clip(predicted, self.low + self.rest, self.high + self.rest)
        errors: Doubles = np.log(predicted / nearest)
        return errors

    def ranges(self) -> tuple[Floats, Floats]:
        """Return the range of the formula's time and of the sizes of each form."""
        ranged = self.inputs[: self.layout.ranged]
        forms = [ranged[:, self.index == number] for number in range(len(self.keys))]
        low, high = (np.stack([f(form, 1) for form in forms]) for f in (np.min, np.max))
        return low, high

    def trust(self, ratios: NDArray[Any]) -> Floats:
        """Return the share of the correction of each form with the smallest mean error."""
        errors = [np.abs(np.expm1(self.log_errors(ratios * share))) for share in SHARES]
        of_forms = [self.index == number for number in range(len(self.keys))]
        best = [int(np.argmin([error[form].mean() for error in errors])) for form in of_forms]
        return np.asarray([SHARES[choice] for choice in best], np.float32)

    def widths(self, ratios: NDArray[Any]) -> Floats:
        """Return half a 90 % interval of log errors of each form.

        It is a quantile for one more row (split conformal prediction); for rare forms at least
        the quantile of all rows.
        """
        errors = np.abs(self.log_errors(ratios))
        forms = [errors[self.index == number] for number in range(len(self.keys))]
        floors = [0.0 if len(f) >= MIN_WIDTH_ROWS else _conformal(errors) for f in forms]
        widths = [max(_conformal(f), floor) for f, floor in zip(forms, floors, strict=True)]
        return np.asarray(widths, np.float32)


def _conformal(errors: Doubles) -> float:
    """Return the quantile that holds ``LEVEL`` of the next rows, the maximum of few rows."""
    return float(np.quantile(errors, min(LEVEL * (1 + 1 / len(errors)), 1.0), method="higher"))


def _inputs(row: Sample, layout: InputLayout, sms: int) -> Floats:
    numbers = (row.time, *row.form.sizes, *(row.form.product or ()))
    column = np.asarray(numbers, np.float64)[:, None]
    return layout.matrix(row.form.words, column, len(row.form.sizes), sms)


def _errors(logarithms: Doubles) -> dict[str, float]:
    """Return mean, median and bias in percent of errors given as log(predicted / measured)."""
    errors = 100 * np.expm1(logarithms)
    sizes = np.abs(errors)
    return {
        "mape": float(sizes.mean()),
        "median": float(np.median(sizes)),
        "bias": float(errors.mean()),
    }


def _fit(table: _Table, seed: int, steps: int, report: Callable[[int], None]) -> Layers:
    """Train an ensemble by AdamW; each network is trained without its part of the rows.

    The loss is the distance of the logarithm from the measured range, and a small share of the
    distance from its upper end.
    """
    import jax
    import jax.numpy as jnp
    import optax

    module = network(WIDTH, DEPTH, 1)
    rate = optax.warmup_cosine_decay_schedule(0.0, RATE, steps // 20, steps)
    optimizer = optax.adamw(rate, weight_decay=DECAY)
    data = jnp.asarray(table.normalised.T)
    low, high = (jnp.asarray(np.log(t / table.time), jnp.float32) for t in (table.low, table.high))
    seen = [np.flatnonzero(table.parts != part) for part in range(PARTS)]
    count = min(map(len, seen))
    order = np.random.default_rng(seed)
    rows = jnp.asarray(np.stack([order.permutation(part)[:count] for part in seen]))

    def loss(weights: Any, index: Any, key: Any) -> Any:  # noqa: ANN401  (JAX arrays)
        noise = NOISE * jax.random.normal(key, (len(index), data.shape[1]))
        ratios = module.apply(weights, data[index] + noise)[:, 0]
        distance = jnp.maximum(ratios - high[index], 0) + jnp.maximum(low[index] - ratios, 0)
        return (distance + PULL * jnp.abs(ratios - high[index])).mean()

    def chunk(state: Any, key: Any, rows: Any) -> Any:  # noqa: ANN401  (JAX arrays)
        def step(carry: Any, key: Any) -> Any:  # noqa: ANN401  (JAX arrays)
            weights, memory = carry
            index = rows[jax.random.randint(key, (min(BATCH, count),), 0, count)]
            change, memory = optimizer.update(jax.grad(loss)(weights, index, key), memory, weights)
            return (optax.apply_updates(weights, change), memory), None

        return jax.lax.scan(step, state, jax.random.split(key, CHUNK))[0]

    weights = jax.vmap(lambda key: module.init(key, data[:1]))(
        jax.random.split(jax.random.key(seed), PARTS)
    )
    state = (weights, jax.vmap(optimizer.init)(weights))
    run = jax.jit(jax.vmap(chunk))
    for number in range(-(-steps // CHUNK)):
        keys = jax.random.split(jax.random.key(1000 * seed + number + 1), PARTS)
        state = run(state, keys, rows)
        jax.block_until_ready(state)
        report(CHUNK)
    return plain_layers(state[0]["params"])
