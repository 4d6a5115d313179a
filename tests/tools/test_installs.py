"""What the comparison of ways to install leaves out: times and places, nothing else."""

from __future__ import annotations

from tests.tools.installs import comparable

STATS = """
┃ statement    ┃ at  ┃ tried ┃  ms ┃ nearest miss                ┃
│ tidy: remove │ 2:3 │     1 │ 0.4 │ aten.mul (%x): 2.5 is not 1 │
│ tidy: expect │ 3:3 │     0 │ 0.0 │                             │
"""
SLOWER = """
┃ statement    ┃ at  ┃ tried ┃   ms ┃ nearest miss                ┃
│ tidy: remove │ 2:3 │     1 │ 12.4 │ aten.mul (%x): 2.5 is not 1 │
│ tidy: expect │ 3:3 │     0 │  0.1 │                             │
"""


def said(text: str, *words: str) -> list[object]:
    return comparable([["opt", *words], 0, "", text])


def test_times_and_the_widths_of_their_column_are_left_out() -> None:
    assert said(STATS, "--stats") == said(SLOWER, "--stats")


def test_other_figures_are_compared() -> None:
    assert said(STATS, "--stats") != said(STATS.replace("    1 ", "    2 "), "--stats")
    assert said(STATS, "--stats") != said(STATS.replace("2.5", "2.6"), "--stats")
    assert said(STATS) != said(SLOWER)


def test_the_folder_of_packages_is_left_out() -> None:
    one, other = (said(f"/x/python3.{minor}/site-packages/irgraph") for minor in (11, 13))
    assert one == other
