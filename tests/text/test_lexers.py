"""Highlighting of models and scripts."""

from __future__ import annotations

import json
import runpy
from importlib import resources
from pathlib import Path

import pytest
from pygments.lexer import RegexLexer
from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, String, Text, Token

from irgraph.language import load_script, statements
from irgraph.text.lexers import ModelLexer, ScriptLexer
from tests.text.textmate import scopes

ROOT = Path(__file__).parents[2]
EDITORS = ROOT / "docs" / "editors"


FILES = sorted(
    path
    for folder in ("passes", "examples", "irgraph", "tests/golden")
    for suffix in ("*.ir", "*.irg")
    for path in (ROOT / folder).rglob(suffix)
)
"""Every script and model that is shipped or golden."""

LONGEST = 30_000
SCOPES = {
    Comment: "comment", String: "string", Keyword.Type: "storage.type", Number: "constant.numeric",
    Name.Function: "entity.name.function", Name.Variable: "variable.other", Keyword: "keyword",
}  # fmt: skip
"""What TextMate calls what Pygments tells apart; of nested kinds the first one counts."""


def kinds(lexer: RegexLexer, text: str) -> dict[str, object]:
    return {value: kind for kind, value in lexer.get_tokens(text)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_editors_and_pygments_tell_the_same_apart(path: Path) -> None:
    text = path.read_text(encoding="utf-8")[:LONGEST]
    lexer = ScriptLexer() if path.suffix == ".irg" else ModelLexer()
    grammar = json.loads((EDITORS / f"{path.suffix[1:]}.tmLanguage.json").read_text())
    found = scopes(grammar, text)
    tokens = list(lexer.get_tokens_unprocessed(text))
    assert "".join(value for _, _, value in tokens) == text
    for place, kind, value in tokens:
        assert kind not in (Text, Token.Error), value
        scope = next((scope for known, scope in SCOPES.items() if kind in known), "")
        if kind not in Keyword.Constant and kind not in Keyword.Pseudo:
            assert found[place].startswith(scope), (value, found[place])


def test_words_of_a_model_are_told_apart() -> None:
    text = (resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir").read_text()
    found = kinds(ModelLexer(), text)
    assert found["model"] is Keyword.Declaration
    assert found["aten.embedding_bag"] is Name.Function
    assert found["f32"] is Keyword.Type
    assert found["module"] is Keyword


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix == ".irg"], ids=lambda path: path.name
)
def test_shipped_scripts_print_as_they_parse(path: Path) -> None:
    script = load_script(path.read_text(encoding="utf-8"))
    assert load_script(str(script)) == script


def test_words_of_statements_are_keywords() -> None:
    script = "# why\nfuse many %y = aten.relu(%x) where %x.rank == 2 into %y = aten.gelu(%x)\n"
    load_script(script)
    found = kinds(ScriptLexer(), script)
    assert found["# why"] is Comment.Single
    assert found["fuse"] is Keyword
    assert found["where"] is found["into"] is Keyword.Reserved
    assert found[".rank"] is Name.Attribute


def test_every_statement_begins_with_a_keyword() -> None:
    for name in statements.statement_names():
        assert kinds(ScriptLexer(), f"{name} x")[name] in Keyword, name


def test_the_lexers_are_found_by_files_names_once_installed() -> None:
    assert get_lexer_for_filename("a.irg").name == "irgraph script"


def test_the_grammars_for_editors_are_up_to_date() -> None:
    made = runpy.run_path(str(EDITORS / "build.py"))["GRAMMARS"]
    stale = [n for n, text in made.items() if (EDITORS / n).read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/editors/build.py"
