"""Training of a family's ensemble with JAX, Flax and Optax; deterministic from a seed.

Rows whose kernel outlasts the launch determine its time; the others determine only an upper bound
(censored regression), and the time of the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.learnable.family import LearnedFamily
from costmodels.learnable.hardware import Floats
from costmodels.learnable.inputs import Inputs
from costmodels.learnable.launch import NEAR_FLOOR
from costmodels.learnable.settings import Settings
from costmodels.learned.files import Layers
from costmodels.learned.infer import combine, forward
from costmodels.learned.weights import Weights
from costmodels.training.network import network, plain_layers

OUTPUTS = 3
"""Logarithms (base e) of: kernel time over base; scale of the error of the first; floor of the
measured time over the usual floor of the op."""
PRIOR = 0.05
"""Weight of the base as an estimate of a censored kernel, relative to an observed error."""
HIDDEN_SHARE = 0.15
"""Share of rows whose device-specific inputs are hidden in training (set to their mean), so that
models also learn to predict for an unseen device."""
CHUNK = 250
"""Updates between two reports of progress."""
DEFAULT_STRETCH = 2.3
"""Factor on predicted scales if no calibration row was timed."""
MIN_CALIBRATION_ROWS, FALLBACK_WIDENING = 50, 1.5
"""Minimum calibration rows for a separate factor of an op, or of an op on a card; and the widening
of the overall factor for other ops, including ops without training rows."""
MIN_CALIBRATION_SHAPES = 3
"""Minimum number of shapes among these rows: rows of one shape are similar."""
CALIBRATION_SHARE = 0.1
"""Share of training rows reserved for the calibration of intervals."""


class Rows(Struct, frozen=True):
    """Training rows. Times in microseconds, one value per row.

    Attributes:
        inputs: base and columns.
        times: measured times.
        before, hidden: the launch of each row's op on its device.
        op: index of each row's op in ``family.ops``.
        shape: number of each combination of sizes; calibration shapes are the same on all devices.
        general: whether the row is valid evidence for unmeasured devices.
    """

    inputs: Inputs
    times: Floats
    before: Floats
    hidden: Floats
    op: NDArray[np.intp]
    shape: NDArray[np.int64]
    general: NDArray[np.bool_]


def fit(
    family: LearnedFamily,
    rows: Rows,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
) -> Weights:
    """Train an ensemble on rows. ``progress`` is called with the steps of each chunk."""
    raw = rows.inputs.matrix()
    low, high, mean = raw.min(1), raw.max(1), raw.mean(1)
    scale = np.where(raw.std(1) > 1e-3, raw.std(1), 1).astype(np.float32)
    batch = _targets(rows, ((raw - mean[:, None]) / scale[:, None]).T)
    calibration = calibration_rows(rows.shape, settings.seed)
    training = {name: value[~calibration] for name, value in batch.items()}
    report = progress or (lambda _: None)
    layers = _train(training, rows.inputs.hidden, settings, report)
    errors = _errors(layers, {name: value[calibration] for name, value in batch.items()})
    if settings.refit:
        layers = _train(batch, rows.inputs.hidden, settings, report)
    extent = _extent(rows, len(family.ops))
    weights = Weights(family, layers, low, high, mean, scale, extent, DEFAULT_STRETCH)
    return scale_intervals(weights, errors, rows, calibration)


def recalibrate_intervals(weights: Weights, rows: Rows, seed: int) -> Weights:
    """Return weights with intervals recalibrated on the same calibration rows as in ``fit``.

    Only for networks that were not refitted on all rows.
    """
    raw = rows.inputs.matrix()
    batch = _targets(rows, ((raw - weights.mean[:, None]) / weights.scale[:, None]).T)
    calibration = calibration_rows(rows.shape, seed)
    errors = _errors(weights.layers, {name: value[calibration] for name, value in batch.items()})
    return scale_intervals(weights, errors, rows, calibration)


def scale_intervals(
    weights: Weights, errors: Floats, rows: Rows, calibration: NDArray[np.bool_]
) -> Weights:
    """Return weights whose intervals contain 90 % of the calibration rows, by op and card.

    ``errors`` are the errors of the calibration rows over predicted scales (``_errors``).
    """
    errors = np.where(
        np.isin(rows.op[calibration], rows.op[~calibration]), errors, np.float32(np.nan)
    )
    ops, op, shape = len(weights.family.ops), rows.op[calibration], rows.shape[calibration]
    overall = _stretch(errors)
    by_op = _by_op(errors, op, shape, ops) if weights.family.campaign.tables else ()
    stretches = np.asarray(by_op or [overall] * ops)
    indicators = np.stack(rows.inputs.indicators)[:, calibration]
    cards = np.ones((ops, len(indicators) + 1))
    for number, card in product(range(ops), range(len(indicators))):
        selected = (op == number) & indicators[card].astype(bool) & np.isfinite(errors)
        if (
            _has_enough_rows(selected, shape)
            and len(np.unique(errors[selected])) >= MIN_CALIBRATION_ROWS
        ):  # without those repeated
            cards[number, card] = round(_conformal(errors[selected]) / stretches[number], 4)
    by_card = tuple(tuple(map(float, row)) for row in cards)
    return replace(weights, stretch=overall, stretches=by_op, cards=by_card)


def calibration_rows(shape: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return the mask of the calibration rows, drawn by the numbers of their shapes."""
    draw_by_shape = np.random.default_rng(seed).random(int(shape.max()) + 1)
    return np.asarray(draw_by_shape[shape] < CALIBRATION_SHARE)


def _extent(rows: Rows, ops: int) -> Floats:
    """Return the minimum and maximum extent of each op, (2, ops); inf and -inf without rows."""
    extent = np.full((2, ops), np.inf, np.float32)
    extent[1] *= -1
    np.minimum.at(extent[0], rows.op, rows.inputs.extent)
    np.maximum.at(extent[1], rows.op, rows.inputs.extent)
    return extent


def _targets(rows: Rows, inputs: Floats) -> dict[str, NDArray[Any]]:
    """Return the arrays of the loss by name: inputs, target logarithms, share of timed kernels."""
    kernel = rows.times - rows.before
    timed = kernel > NEAR_FLOOR * rows.hidden
    target_time = np.where(timed, kernel, rows.hidden)
    floor = np.maximum(rows.before + rows.hidden, np.float32(1e-3))  # none: no launch was timed
    return {
        "inputs": inputs.astype(np.float32),
        "ratio": np.log(target_time / rows.inputs.base),
        "share": np.where(timed, kernel / rows.times, 0).astype(np.float32),
        "floor": np.log(rows.times / floor),
        "general": rows.general,
    }


def _loss(out: Any, rows: dict[str, Any]) -> Any:  # noqa: ANN401  (JAX arrays)
    """Return the mean loss: relative error of the measured time, Laplace likelihoods, launch."""
    import jax
    import jax.numpy as jnp

    ratio, log_scale, floor = out[..., 0], jnp.clip(out[..., 1] - 3.5, -7, 1), out[..., 2]
    timed = rows["share"] > 0
    error = jnp.abs(ratio - rows["ratio"])
    over = jnp.maximum(ratio - rows["ratio"], 0) + PRIOR * jnp.abs(ratio)
    doubt = jnp.where(timed, error, 0.25 * jnp.maximum(rows["ratio"], 0) + 0.05)
    fixed = jax.lax.stop_gradient(doubt)
    likelihood = fixed * jnp.exp(-log_scale) + log_scale
    launch = jnp.where(timed, 0, jnp.abs(floor - rows["floor"]))
    return jnp.mean(jnp.where(timed, error * rows["share"], over) + 0.02 * likelihood + launch)


def _train(
    rows: dict[str, NDArray[Any]], personal: int, settings: Settings, report: Callable[[int], None]
) -> Layers:
    import jax
    import jax.numpy as jnp
    import optax

    shape = settings.architecture
    module = network(shape.width, shape.depth, OUTPUTS)
    rate = optax.warmup_cosine_decay_schedule(
        0.0, settings.rate, settings.steps // 20, settings.steps
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=settings.decay)
    )
    data = {name: jnp.asarray(value) for name, value in rows.items()}
    count = len(rows["ratio"])

    def step(state: Any, key: Any) -> Any:  # noqa: ANN401  (JAX arrays)
        weights, memory = state
        choice_key, hiding_key = jax.random.split(key)
        index = jax.random.randint(choice_key, (settings.batch,), 0, count)
        minibatch = {name: value[index] for name, value in data.items()}
        hidden = (
            jax.random.bernoulli(hiding_key, HIDDEN_SHARE, (settings.batch,)) & minibatch["general"]
        )
        personal_inputs = jnp.where(hidden[:, None], 0, minibatch["inputs"][:, -personal:])
        minibatch["inputs"] = minibatch["inputs"].at[:, -personal:].set(personal_inputs)
        gradient = jax.grad(lambda w: _loss(module.apply(w, minibatch["inputs"]), minibatch))(
            weights
        )
        change, memory = optimizer.update(gradient, memory, weights)
        return (optax.apply_updates(weights, change), memory), None

    keys = jax.random.split(jax.random.key(settings.seed), shape.members)
    weights = jax.vmap(lambda k: module.init(k, data["inputs"][:1]))(keys)
    state = (weights, jax.vmap(optimizer.init)(weights))
    run = jax.jit(jax.vmap(lambda s, k: jax.lax.scan(step, s, k)[0]))
    for start in range(0, settings.steps, CHUNK):
        updates = min(CHUNK, settings.steps - start)
        chunk_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, start)
        state = run(state, jax.vmap(lambda k, n=updates: jax.random.split(k, n))(chunk_keys))
        jax.block_until_ready(state)
        report(updates)
    return plain_layers(state[0]["params"])


def _errors(layers: Layers, batch: dict[str, NDArray[Any]]) -> Floats:
    """Return absolute errors over predicted scales, nan for untimed kernels."""
    ratio, scale, _ = combine(forward(layers, batch["inputs"].T))
    errors = np.abs(ratio - batch["ratio"]) / scale
    return np.asarray(np.where(batch["share"] > 0, errors, np.nan), np.float32)


def _stretch(errors: Floats) -> float:
    """Return the factor on predicted scales that bounds 90 % of the calibration errors."""
    timed = errors[np.isfinite(errors)]
    return float(np.quantile(timed, 0.9)) if len(timed) else DEFAULT_STRETCH


def _by_op(
    errors: Floats, op: NDArray[np.intp], shape: NDArray[np.int64], count: int
) -> tuple[float, ...]:
    """Return the factor of each op; an op with few calibration rows gets a widened overall one."""
    overall = _stretch(errors)
    factors = []
    for number in range(count):
        selected = (op == number) & np.isfinite(errors)
        has_factor = _has_enough_rows(selected, shape)
        factors.append(_conformal(errors[selected]) if has_factor else FALLBACK_WIDENING * overall)
    return tuple(round(value, 4) for value in factors)


def _has_enough_rows(selected: NDArray[np.bool_], shape: NDArray[np.int64]) -> bool:
    """Return whether the selected rows and their shapes are enough for a separate factor."""
    return (
        int(selected.sum()) >= MIN_CALIBRATION_ROWS
        and len(np.unique(shape[selected])) >= MIN_CALIBRATION_SHAPES
    )


def _conformal(errors: Floats) -> float:
    """Return the factor that bounds 90 % of such errors.

    A finite sample requires a slightly higher quantile (split conformal prediction).
    """
    return float(np.quantile(errors, min(0.9 * (1 + 1 / len(errors)), 1.0)))
