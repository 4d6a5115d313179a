"""Highlighting of models and scripts."""

from __future__ import annotations

import runpy
from importlib import resources
from pathlib import Path

import pytest
from pygments.lexer import RegexLexer
from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Text, Token

import grammars
import passes
from irgraph.language import load_script
from irgraph.text.lexers import CLAUSES, DECLARATIONS, DTYPES, STATEMENTS, ModelLexer, ScriptLexer

ROOT = Path(__file__).parents[2]
EDITORS = ROOT / "docs" / "editors"


def kinds(lexer: RegexLexer, text: str) -> dict[str, object]:
    return {value: kind for kind, value in lexer.get_tokens(text)}


def test_all_of_a_model_is_told_apart() -> None:
    text = (resources.files("irgraph.evaluate") / "data" / "dlrm_default.ir").read_text()
    tokens = list(ModelLexer().get_tokens(text))
    assert "".join(value for _, value in tokens) == text
    assert not {value for kind, value in tokens if kind in (Text, Token.Error)}
    found = {value: kind for kind, value in tokens}
    assert found["model"] is Keyword.Declaration
    assert found["aten.embedding_bag"] is Name.Function
    assert found["f32"] is Keyword.Type
    assert found["module"] is Keyword


@pytest.mark.parametrize("name", passes.names())
def test_all_of_a_pass_is_told_apart(name: str) -> None:
    file = passes.find(name)
    assert file is not None
    tokens = list(ScriptLexer().get_tokens(file.text))
    assert not {value for kind, value in tokens if kind in (Text, Token.Error)}
    assert {v: k for k, v in tokens}[name] is Name.Function


def test_words_of_statements_are_keywords() -> None:
    script = "# why\nfuse many %y = aten.relu(%x) where %x.rank == 2 into %y = aten.gelu(%x)\n"
    load_script(script)
    found = kinds(ScriptLexer(), script)
    assert found["# why"] is Comment.Single
    assert found["fuse"] is Keyword
    assert found["where"] is found["into"] is Keyword.Reserved
    assert found[".rank"] is Name.Attribute


def test_every_word_of_the_grammar_is_known() -> None:
    folder = Path(str(grammars.__file__)).parent
    known = {*STATEMENTS, *CLAUSES, *DECLARATIONS, *DTYPES, "shape", "memory"}
    import re

    text = (folder / "transform.lark").read_text()
    rules = re.sub(r"/[^/\n]*/\.?\w*|//[^\n]*", "", text)
    said = set(re.findall(r'"([a-z]+)"', rules))
    assert said <= known


def test_the_lexers_are_found_by_files_names_once_installed() -> None:
    from importlib.metadata import entry_points

    if not any(p.value.startswith("irgraph.") for p in entry_points(group="pygments.lexers")):
        pytest.skip("irgraph is not installed, or was before it had lexers")
    assert get_lexer_for_filename("a.irg").name == "irgraph script"


def test_the_grammars_for_editors_are_up_to_date() -> None:
    made = runpy.run_path(str(EDITORS / "build.py"))["GRAMMARS"]
    for name, text in made.items():
        assert (EDITORS / name).read_text(encoding="utf-8") == text, "run docs/editors/build.py"
