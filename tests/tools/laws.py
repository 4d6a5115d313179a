"""Worth of formulas' laws: errors of corrections trained with and without each law.

Usage: python -m tests.tools.laws [FAMILY ...]

Errors are cross-validated on the two thirds of a card's rows that corrections are trained on. A law
is disabled by replacing the function that applies it, so that the family's next formula answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from costmodels.devices.library import load_device
from costmodels.evaluate.timed.swept import SHIPPED, is_held_out
from costmodels.training import correction
from irgraph.ir.graph import Graph

CARD = "h100-80gb-hbm3"

FAMILIES, FORMULAS = "costmodels.families", "costmodels.formulas"

HOPPER = ("narrow_on_hopper", "convolution_on_hopper", "depthwise_on_hopper", "grouped_on_hopper")
NO_KERNELS: Mapping[str, Any] = dict.fromkeys(HOPPER, ())
OTHERS = {"fused_on_hopper": None, "batched_kernel": None, "unaligned_kernel": None}
"""Results of functions that apply no law; predicates return false."""

CONVOLUTIONS = tuple(f"{FAMILIES}.conv.{name}" for name in HOPPER)
PRODUCTS = tuple(f"{FORMULAS}.products.{name}" for name in ("batched_kernel", "unaligned_kernel"))
ROWS = tuple(
    f"{module}.has_row_laws"
    for module in (
        f"{FAMILIES}.index", f"{FAMILIES}.sort", f"{FORMULAS}.scatter", f"{FORMULAS}.rows",
        f"{FORMULAS}.lookup", f"{FORMULAS}.table_gradient",
    )
)  # fmt: skip


def _gpu_laws(*modules: str) -> tuple[str, ...]:
    return tuple(f"{module}.has_gpu_laws" for module in modules)


LAWS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "conv2d": (*((name,) for name in CONVOLUTIONS), CONVOLUTIONS),
    "conv1d": (*((name,) for name in CONVOLUTIONS), CONVOLUTIONS),
    "attention": ((f"{FAMILIES}.attention.fused_on_hopper",),),
    "linear": (PRODUCTS[1:],),
    "bmm": (*((name,) for name in PRODUCTS), PRODUCTS),
    "norm": (_gpu_laws(f"{FAMILIES}.norm", f"{FORMULAS}.blocks.image_norms"),),
    "reduce": (_gpu_laws(f"{FAMILIES}.reduce"),),
    "softmax": (_gpu_laws(f"{FAMILIES}.softmax"),),
    "sort": ((*_gpu_laws(f"{FAMILIES}.sort"), *ROWS),),
    "fill": (_gpu_laws(f"{FAMILIES}.fill"),),
    "dropout": (_gpu_laws(f"{FAMILIES}.elementwise"),),
    "pool": (_gpu_laws(f"{FAMILIES}.pool"),),
    "index": (ROWS,),
    "scatter": (ROWS,),
    "embedding": (ROWS,),
}
"""Functions that apply each law or group of laws, by the sweep whose calls it prices."""


@contextmanager
def disabled(functions: Sequence[str]) -> Iterator[None]:
    """Replace functions by ones that apply no law; restore them at exit."""
    with ExitStack() as stack:
        for path in functions:
            module, _, name = path.rpartition(".")
            result: Any = NO_KERNELS.get(name, OTHERS.get(name, False))
            replacement = lambda *_, result=result, **__: result  # noqa: E731
            stack.enter_context(patch.object(import_module(module), name, replacement))
        yield


def errors(family: str) -> Iterator[tuple[str, int, float, float]]:
    """Yield each group of laws with its rows, and percent errors without and with corrections."""
    sheet, path = load_device(CARD), SHIPPED / CARD / "kernels.jsonl.gz"
    for functions in ((), *LAWS[family]):
        with disabled(functions):
            rows = correction.samples(path, family, sheet, lambda key: not is_held_out(key))
            record = correction.fit_correction(rows, family, sheet).made
        name = ", ".join(function.rpartition(".")[2] for function in functions) or "all laws"
        yield name, len(rows), record["formula_pct"]["mape"], record["model_pct"]["mape"]


def main(families: Sequence[str]) -> None:
    """Print a line for each group of laws."""
    graphs: dict[str, Graph] = {}
    capture = correction.captured

    def cached_capture(row: Mapping[str, Any]) -> Graph:
        key = f"{row['family']} {row['key']}"
        if key not in graphs:
            graphs[key] = capture(row)
        return graphs[key]

    with patch.object(correction, "captured", cached_capture):
        for family in families or sorted(LAWS):
            for name, count, formula, model in errors(family):
                without = "" if name == "all laws" else "without "
                line = f"{family}: {without}{name}: {count} rows, {formula:.1f} %, {model:.1f} %"
                sys.stdout.write(line + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
