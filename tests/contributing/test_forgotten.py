"""Whoever forgets a part of a recipe is told which, by a test that the recipe runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contributing.recipes import run
from tests.contributing.test_recipes import BEFORE, RECIPES, copy

EACH = "tests/language/test_each_statement.py"
STATEMENT = "irgraph/language/statements/commute.py"

FORGOTTEN = (
    ("A kernel family", "docs/costs.md", "tests/costmodels/families/test_sources.py -k renorm",
     "docs/costs.md has no row for renorm"),
    ("A learned family", "docs/costs.md", "tests/costmodels/families/test_sources.py -k distance",
     "docs/costs.md has no row for distance"),
    ("A learned family", "docs/learned.md", "tests/costmodels/benchmarks/test_sweep.py -k docu",
     r"docs/learned.md lacks {'\| distance"),
    ("An op that torch lacks", "tests/ops/own/geglu.ir", "tests/ops -k has_a_call",
     r"add calls of \['irgraph.geglu', 'irgraph.geglu_backward'\] to a file of tests/ops/own"),
    ("A statement", "grammars/transform.lark", f"{EACH} -k has_a_file",
     "not in _statement of transform.lark.*'commute'"),
    ("A statement", STATEMENT, f"{EACH} -k has_a_file",
     "have no file in irgraph/language/statements.*'commute'"),
    ("A statement", "irgraph/verbs/commute.py", f"{EACH} -k prints_as_it_reads",
     rf"'commute' \({STATEMENT}\) cannot be loaded: .*irgraph.verbs.commute"),
    ("A statement", "docs/language.md", f"{EACH} -k section",
     "docs/language.md has no section '### commute'"),
    ("A statement", "tests/golden/messages/scripts.md", f"{EACH} -k book",
     "no book of tests/golden/messages shows what is wrong with a commute"),
    ("A statement", "docs/editors", "tests/text/test_lexers.py -k up_to_date",
     "run python docs/editors/build.py"),
    ("A statement", "tests/verbs/test_commute_verb.py", "tests/verbs/test_each_verb.py -k commute",
     "no file of tests/verbs imports commute"),
    ("A pass", "docs/library.md", "tests/passes/test_library.py -k docs",
     "docs/library.md lacks a row .*'drop-identities'"),
    ("A pass", "tests/golden/passes/drop-identities.before.ir",
     "tests/passes/test_golden.py -k drop-identities", "drop-identities.before.ir"),
    ("A command", "docs/commands.md", "tests/cli/test_discovery.py -k page",
     r"a page of docs/ should show .*\n?.*'dims'"),
    ("A trace format", "docs/front-ends.md", "tests/capture/front_ends -k layers",
     "no page tells of a list of layers"),
    ("A trace format", "tests/capture/front_ends/examples.py", "tests/capture/front_ends -k layers",
     r"examples.py has no layers\(path\)"),
)  # fmt: skip
"""Recipe, what is forgotten of it, which tests run, and what they say."""


@pytest.mark.slow
@pytest.mark.parametrize(("title", "path", "tests", "said"), FORGOTTEN)
def test_a_forgotten_part_is_named(
    title: str, path: str, tests: str, said: str, tmp_path: Path
) -> None:
    tree = copy(tmp_path)
    for name in (*BEFORE.get(title, ()), title):
        RECIPES[name].without(path).apply(tree)
    ran = run(f"pytest {tests}", tree)
    assert ran.returncode == 1 and re.search(said, ran.stdout, re.DOTALL), ran.stdout
