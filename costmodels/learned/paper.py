"""The paper's own way: one MLP a device and kernel, log sizes in, log time out, found by search.

Section III-B-2 and Table II: layers, width, optimizer and learning rate (times ten for SGD), mean
squared error. Learning rates and seeds of one architecture train together under ``vmap``; the grid
is halved by success (Optuna) or run whole. Unlike the paper's program, the winner is chosen on rows
kept aside from training, and its error is that of rows held out from both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.learned.data import Measurements
from costmodels.learned.hardware import Floats
from costmodels.learned.score import OFFSET, Score, score

RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
TABLE: Mapping[str, tuple[Any, ...]] = {
    "layers": (3, 4, 5, 6, 7),
    "width": (128, 256, 512, 1024),
    "optimizer": ("adam", "sgd"),
}
"""Table II, but for the learning rates, which train together."""
DECAY, BATCH, KEPT = 1e-4, 256, 0.1
"""Weight decay of the paper's program, rows an update, and share of rows kept for choosing."""
RUNGS = (100, 300, 900, 2700)
"""Updates after which the worse two thirds of the architectures are given up; the last ends it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Natural logarithms of sizes (rows, sizes) and of times (rows,), and which rows choose."""

    inputs: Floats
    times: Floats
    train: Any
    choose: Any


@dataclass(frozen=True, slots=True)
class Winner:
    """The best model of a search.

    Attributes:
        parameters: its place in Table II.
        chosen_gmae: its error on the rows that chose it, as a fraction.
        held_out: its errors on held-out rows; no intervals.
        finished, given_up: architectures trained to the end, and not.
    """

    parameters: Mapping[str, Any]
    chosen_gmae: float
    held_out: Score
    finished: int
    given_up: int


def search(
    data: Measurements,
    journal: str | Path,
    *,
    seeds: int = 1,
    whole: bool = False,
    table: Mapping[str, tuple[Any, ...]] = TABLE,
    rungs: tuple[int, ...] = RUNGS,
    progress: Callable[[str], None] | None = None,
) -> Winner:
    """Search the grid for one op on one device.

    Args:
        data: rows of one op and one device.
        journal: file that remembers trials; a search that was cut off continues with it.
        seeds: initial weights tried for each learning rate.
        whole: train every architecture to the end, in place of halving.
        table: the grid.
        rungs: as ``RUNGS``.
        progress: told each architecture before it trains.
    """
    study, rows = _study(journal, whole, rungs), _rows(data)
    for values in product(*table.values()):
        point = dict(zip(table, values, strict=True))
        if point in [t.params for t in study.trials if t.state.name in ("COMPLETE", "PRUNED")]:
            continue
        if progress is not None:
            progress(", ".join(f"{name} {value}" for name, value in point.items()))
        study.enqueue_trial(point)
        _try(study, rows, table, seeds, rungs)
    best = study.best_trial
    *_, (_, predicted) = _train(rows, best.params, seeds, rungs)
    errors = np.exp(predicted[best.user_attrs["member"]]) / data.times - 1
    held = errors[data.dev]
    states = [trial.state.name for trial in study.trials]
    return Winner(
        {**best.params, "rate": best.user_attrs["rate"]},
        float(best.value),
        score(held, np.zeros(len(held), bool)),
        states.count("COMPLETE"),
        states.count("PRUNED"),
    )


def _rows(data: Measurements) -> Rows:
    sizes = [np.log(data.sizes[name]) for name in data.family.sizes]
    choose = ~data.dev & (np.random.default_rng(0).random(len(data.times)) < KEPT)
    inputs = np.stack(sizes, 1).astype(np.float32)
    return Rows(inputs, np.log(data.times).astype(np.float32), ~data.dev & ~choose, choose)


def _study(journal: str | Path, whole: bool, rungs: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Return the Optuna study of a journal, with what gives trials up."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=rungs[0], reduction_factor=3)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name="whole" if whole else "halving",
        pruner=optuna.pruners.NopPruner() if whole else halving,
        load_if_exists=True,
    )


def _try(
    study: Any,  # noqa: ANN401  (Optuna's study)
    rows: Rows,
    table: Mapping[str, tuple[Any, ...]],
    seeds: int,
    rungs: tuple[int, ...],
) -> None:
    """Train the architecture that is enqueued, until it ends or is given up."""
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState

    choices = {name: CategoricalDistribution(values) for name, values in table.items()}
    trial = study.ask(choices)
    for step, predicted in _train(rows, trial.params, seeds, rungs):
        error = np.abs(np.exp(predicted - rows.times) - 1)[:, rows.choose]
        gmae = np.exp(np.log(error + OFFSET).mean(1))
        member = int(np.nanargmin(np.where(np.isfinite(gmae), gmae, np.inf)))
        trial.set_user_attr("member", member)
        trial.set_user_attr("rate", RATES[member // seeds])
        trial.report(float(gmae[member]), step)
        if step < rungs[-1] and trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
            return
    study.tell(trial, float(gmae[member]))


def _train(rows: Rows, point: Mapping[str, Any], seeds: int, rungs: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Train every learning rate and seed at once; yield updates done and predictions of all rows.

    Predictions are log times, (rates x seeds, rows).
    """
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen

    module = linen.Sequential([*_layers(linen, point), linen.Dense(1)])
    adam = point["optimizer"] == "adam"
    rates = jnp.repeat(jnp.asarray(RATES) * (1 if adam else 10), seeds)
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.add_decayed_weights(DECAY),
        optax.scale_by_adam() if adam else optax.identity(),
    )
    inputs, times = jnp.asarray(rows.inputs[rows.train]), jnp.asarray(rows.times[rows.train])

    def loss(weights: Any, index: Any) -> Any:  # noqa: ANN401  (JAX arrays)
        return jnp.mean((module.apply(weights, inputs[index])[:, 0] - times[index]) ** 2)

    def advance(weights: Any, memory: Any, rate: Any, keys: Any) -> Any:  # noqa: ANN401
        def step(state: Any, key: Any) -> Any:  # noqa: ANN401
            index = jax.random.randint(key, (BATCH,), 0, len(times))
            slope = jax.grad(loss)(state[0], index)
            change, memory = rule.update(slope, state[1], state[0])
            moved = jax.tree.map(lambda w, c: w - rate * c, state[0], change)
            return (moved, memory), None

        return jax.lax.scan(step, (weights, memory), keys)[0]

    starts = jax.random.split(jax.random.key(0), len(rates))
    weights = jax.vmap(lambda key: module.init(key, inputs[:1]))(starts)
    memory = jax.vmap(rule.init)(weights)
    run = jax.jit(jax.vmap(advance, (0, 0, 0, None)))
    every = jnp.asarray(rows.inputs)
    for start, end in zip((0, *rungs), rungs, strict=False):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), start), end - start)
        weights, memory = run(weights, memory, rates, keys)
        yield end, np.asarray(jax.vmap(lambda w: module.apply(w, every)[:, 0])(weights))


def _layers(linen: Any, point: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401  (Flax)
    found: list[Any] = []
    for _ in range(point["layers"]):
        found += [linen.Dense(point["width"]), linen.relu]
    return found
