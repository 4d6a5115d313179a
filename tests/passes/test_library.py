"""The shipped passes: found by name, described, sound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import passes
from irgraph.language import Script, check_script, load_pass, load_script
from irgraph.language.clauses import Call
from irgraph.language.expressions.nodes import Literal
from irgraph.language.statement import Statement
from irgraph.language.statements.apply import Apply
from irgraph.text import IrgraphError
from tests.installed import install, site
from tests.language.models import mlp

__all__ = ["site"]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", passes.names())
def test_a_shipped_pass_is_sound_and_bears_its_file_s_name(name: str) -> None:
    found = load_pass(name)
    assert found.name == name
    assert found.description.endswith(".")
    given = tuple((p.name, Literal(1)) for p in found.parameters if p.default is None)
    applied: tuple[Statement, ...] = (Apply(Call(name, given)),)
    assert name in check_script(Script((), applied), mlp())


@pytest.mark.parametrize("name", passes.names())
def test_a_shipped_pass_prints_as_it_parses(name: str) -> None:
    file = passes.find(name)
    assert file is not None
    script = load_script(file.text, file.source)
    assert load_script(str(script)) == script


def test_given_folders_come_first(tmp_path: Path) -> None:
    (tmp_path / "fuse-epilogue.irg").write_text('pass fuse-epilogue "Mine." {}')
    (tmp_path / "other.irg").write_text('pass other "Other." {}')
    assert load_pass("fuse-epilogue", [tmp_path]).description == "Mine."
    assert "other" in passes.names([tmp_path])
    assert "other" not in passes.names()


def test_an_installed_package_adds_passes(site: Path) -> None:
    files = {
        "toy_passes/__init__.py": "",
        "toy_passes/toy.irg": 'pass toy "Mine." { remove aten.t }',
    }
    install(site, "toys", {"irgraph.passes": {"toys": "toy_passes"}}, files)
    assert load_pass("toy").description == "Mine."
    assert "toy" in passes.names()


def test_a_package_of_passes_that_cannot_be_imported_is_named(site: Path) -> None:
    install(site, "toys", {"irgraph.passes": {"toys": "no_such_module"}}, {})
    with pytest.raises(IrgraphError, match=r"plug-in 'toys' of toys 1\.0: no_such_module cannot"):
        passes.names()


def test_a_pass_that_is_nowhere_is_none() -> None:
    assert passes.find("no-such-pass") is None


def test_folders_that_are_not_there_hold_nothing(tmp_path: Path) -> None:
    assert passes.names([tmp_path / "missing"]) == passes.names()


def test_every_pass_has_its_row_and_its_paragraph_in_the_docs() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    rows = {row.partition("(")[0] for row in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)}
    calls = dict(re.findall(r"^\*\*`([\w-]+)(?:\(([^`]*)\))?`\*\*", page, re.MULTILINE))
    calls |= dict(re.findall(r" and \*\*`([\w-]+)\(([^`]*)\)`\*\*", page))
    declared = {path.stem: load_pass(path.stem) for path in (ROOT / "passes").glob("*.irg")}
    half = declared.keys() ^ (rows & calls.keys())
    assert not half, "docs/library.md lacks a row of its table or a paragraph, or has one too many"
    for name, found in declared.items():
        given = [f"{p.name} = {p.default}" if p.default else p.name for p in found.parameters]
        short = [p.name for p in found.parameters]
        assert calls[name] in (", ".join(given), ", ".join(short)), name
