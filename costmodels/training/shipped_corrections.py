"""Trains the corrections that ship, on the measurements that ship.

Usage: python -m costmodels.training.shipped_corrections [CARD ...]

One case in three, by a hash of it, is held out and never read here: ``irgraph evaluate swept``
evaluates on these. A form that several families' sweeps contain belongs to the family with most of
its rows.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodels.commands._training import require
from costmodels.devices.library import load_device
from costmodels.evaluate.timed.swept import SHIPPED as MEASUREMENTS
from costmodels.evaluate.timed.swept import is_held_out
from costmodels.families import shipped_sweeps
from costmodels.learned.correction import save_own
from costmodels.learned.correctors import SHIPPED
from costmodels.training.correction import Sample, fit_correction, samples

COMMAND = "python -m costmodels.training.shipped_corrections"


def samples_by_owner(samples_by_family: Mapping[str, Sequence[Sample]]) -> dict[str, list[Sample]]:
    """Return samples by the family whose sweep has most of their form's rows."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for family, rows in samples_by_family.items():
        for row in rows:
            counts[row.form.key][family] += 1
    owners = {key: families.most_common(1)[0][0] for key, families in counts.items()}
    owned: dict[str, list[Sample]] = {family: [] for family in samples_by_family}
    for rows in samples_by_family.values():
        for row in rows:
            owned[owners[row.form.key]].append(row)
    return owned


def train_card(card: str) -> None:
    """Train and write the corrections of all families that were swept on a card."""
    path, sheet = MEASUREMENTS / card / "kernels.jsonl.gz", load_device(card)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    measured = {
        family: samples(path, family, sheet, lambda key: not is_held_out(key))
        for family in shipped_sweeps()
    }
    folder = SHIPPED / card
    folder.mkdir(parents=True, exist_ok=True)
    for family, rows in samples_by_owner(measured).items():
        if rows:
            model = fit_correction(rows, family, sheet)
            record = {**model.made, "data_sha256": digest, "command": f"{COMMAND} {card}"}
            save_own(replace(model, made=record), folder / f"{family}.safetensors")
            before, after = (record[name]["mape"] for name in ("formula_pct", "model_pct"))
            sys.stdout.write(f"{family}: {len(rows)} rows, {before:.1f} % -> {after:.1f} %\n")
            sys.stdout.flush()


def main() -> None:
    """Train the corrections of the cards named, by default of all that were swept."""
    require("jax", "flax", "optax", "torch")
    cards = sys.argv[1:] or sorted(p.parent.name for p in MEASUREMENTS.glob("*/kernels.jsonl.gz"))
    for card in cards:
        train_card(card)


if __name__ == "__main__":
    main()
