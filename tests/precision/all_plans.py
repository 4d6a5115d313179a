"""The best plan among all of a problem, measured one by one: the oracle of searches."""

from __future__ import annotations

from itertools import product

from irgraph.precision.search import FormatProblem


def best_of_all(problem: FormatProblem, budget: float) -> dict[int, str]:
    """Return the plan with the largest gain within the budget."""
    formats: dict[int, list[str]] = {}
    for item in problem.items:
        formats.setdefault(item.candidate, [""]).append(item.format)
    choices = (zip(formats, choice, strict=True) for choice in product(*formats.values()))
    plans = [{number: name for number, name in pairs if name} for pairs in choices]
    return max((plan for plan in plans if problem.kl(plan) <= budget), key=problem.gain)
