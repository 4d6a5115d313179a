"""Wrong rewrites are found: of 500, each in one of nine models, at least 99 of 100."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from irgraph.execute import compare
from irgraph.text import IrgraphError
from tests.execute.equivalent import proof
from tests.execute.mutants import KINDS, Mutant, mutants
from tests.execute.test_library import MODELS, graph_of

QUICK = ("mlp", "conv", "transformer", "lookups-first", "attention")
"""Models that run in a tenth of a second."""

LONG = ("resnet50",)
"""Models that take two seconds a time."""


def outcomes(model: str, count: int, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Yield how each of some mutants fared: found, refused when it ran, proven equal, or missed."""
    graph = graph_of(model)
    for mutant in mutants(graph, count, seed):
        try:
            found = not compare(graph, mutant.graph).same
        except IrgraphError:
            yield "refused", mutant
        else:
            yield "found" if found else "proven" if proof(graph, mutant) else "missed", mutant


def test_wrong_rewrites_are_found() -> None:
    all_of_them = [one for model in QUICK for one in outcomes(model, 8, seed=len(model))]
    missed = [str(mutant) for how, mutant in all_of_them if how == "missed"]
    assert not missed
    found = Counter(mutant.kind for how, mutant in all_of_them if how in ("found", "refused"))
    assert set(found) == set(KINDS)


@pytest.mark.slow
def test_of_five_hundred_wrong_rewrites_nearly_all_are_found() -> None:
    shares = {model: 80 if model in QUICK else 8 if model in LONG else 25 for model in MODELS}
    all_of_them = [one for model in MODELS for one in outcomes(model, shares[model], seed=56)]
    wrong = [one for one in all_of_them if one[0] != "proven"]
    missed = [str(mutant) for how, mutant in wrong if how == "missed"]
    assert len(all_of_them) >= 500
    assert len(missed) <= 0.01 * len(wrong), missed
