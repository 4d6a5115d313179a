"""What every statement must have beside its file: a rule, a section, a round trip, a message."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import pytest

from irgraph.language import Script, load_script, run, statements
from irgraph.language.defects import StatementError
from irgraph.language.statement import walk
from irgraph.language.statements.find import Find
from irgraph.text import IrgraphError
from tests.language.models import mlp
from tests.language.sentences import Sentences

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "irgraph" / "language" / "statements"
PAGE = ROOT / "docs" / "language.md"
BOOKS = ROOT / "tests" / "golden" / "messages"
ANSWERED = re.compile(r"^```irg\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A script of a page, and what is shown below it."""

NAMES = sorted(statements.statement_names())
FAILED = ("error: ", "warning: ")


def uses(script: str, name: str) -> bool:
    """Tell whether a text is a script with a statement."""
    try:
        read = load_script(script)
    except IrgraphError:
        return False
    bodies = [read.body, *(declared.body for declared in read.passes)]
    return any(
        isinstance(s, statements.statement_class(name)) for body in bodies for s in walk(body)
    )


def section(page: str, name: str) -> str:
    """Return the section of a page whose heading names a statement."""
    for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0]
        if name in re.split(r", | and ", heading):
            return re.split(r"^## ", part, flags=re.MULTILINE)[0]
    return ""


def test_every_statement_of_the_grammar_has_a_file_and_every_file_a_rule() -> None:
    files = {path.stem for path in FOLDER.glob("[a-z]*.py")}
    assert set(NAMES) - files == set(), "these rules have no file in irgraph/language/statements"
    assert files - set(NAMES) == set(), "these files are not in _statement of transform.lark"


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_has_a_section_with_an_example_that_runs(name: str) -> None:
    text = section(PAGE.read_text(encoding="utf-8"), name)
    assert text, f"docs/language.md has no section '### {name}'"
    said = [answer for script, answer in ANSWERED.findall(text) if uses(script, name)]
    works = [answer for answer in said if "error: " not in answer]
    assert works, f"the section '### {name}' of docs/language.md shows no {name} that works"


@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_a_statement_prints_as_it_reads(name: str) -> None:
    for text in Sentences("transform").of(name):
        script = load_script(text)
        assert isinstance(script.body[0], statements.statement_class(name))
        assert load_script(str(script)) == script, f"{text!r} prints as {str(script)!r}"


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_has_its_messages_in_a_book(name: str) -> None:
    books = [path.read_text(encoding="utf-8") for path in BOOKS.glob("*.md")]
    shown = [pair for book in books for pair in ANSWERED.findall(book)]
    wrong = [s for s, answer in shown if any(word in answer for word in FAILED) and uses(s, name)]
    assert wrong, f"no book of tests/golden/messages shows what is wrong with a {name}"


def test_sentences_take_every_clause() -> None:
    said = " ".join(Sentences("transform").of("fuse"))
    for word in ("many", "within", "where", "group by", "having", "as", "assuming", "*", "..."):
        assert word in said, word


@pytest.mark.parametrize(
    ("method", "done"), [("read", "read"), ("check", "checked"), ("run", "run")]
)
@pytest.mark.parametrize("wrong", [AssertionError(), TypeError("a slip"), KeyError("x")])
def test_a_slip_in_a_statement_names_it_and_its_file(
    method: str, done: str, wrong: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = rf"the statement 'find' \(irgraph/language/statements/find.py\) cannot be {done}: "

    def failing(*_: object) -> None:
        raise wrong

    monkeypatch.setattr(Find, method, failing)
    with pytest.raises(StatementError, match=message) as caught:
        run(load_script("repeat at most 2 { find a = aten.t }"), mlp())
    assert f"{type(wrong).__name__}" in str(caught.value)
    assert "test_each_statement.py, line " in str(caught.value)


def read_by(kind: object, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return a script whose statement is of another kind."""
    monkeypatch.setattr(statements, "statement_class", lambda _: kind)
    return load_script("find a = aten.t")


def test_a_statement_without_a_runner_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = type(Find)("Lacking", (Find,), {"run": abstractmethod(Find.run)})
    with pytest.raises(StatementError, match=r"'find' .* cannot be read: .* abstract method '?run"):
        read_by(lacking, monkeypatch)


def test_a_statement_whose_fields_do_not_fit_its_rule_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StatementError, match=r"gives it 2 parts for its fields \(call\)"):
        read_by(statements.statement_class("apply"), monkeypatch)


def test_a_reader_that_returns_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = type("Wrong", (Find,), {"read": classmethod(lambda *_: "x")})
    with pytest.raises(StatementError, match=r"'find' \(.*find\.py\) reads 'x', not a Wrong"):
        read_by(wrong, monkeypatch)


def test_a_part_of_another_type_than_its_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = type("Wrong", (Find,), {"__annotations__": {"name": int}})
    message = r"'find' \(.*find\.py\) cannot be read: the grammar gives its field 'name' a str"
    with pytest.raises(StatementError, match=message):
        read_by(dataclass(frozen=True)(wrong), monkeypatch)


def test_a_statement_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = type("Wrong", (Find,), {"__str__": lambda _: None})
    with pytest.raises(StatementError, match=r"'find' \(.*find\.py\) cannot be written: TypeError"):
        read_by(wrong, monkeypatch)


def test_a_rule_without_a_file_is_named() -> None:
    with pytest.raises(StatementError, match=r"'fnd' \(irgraph/language/statements/fnd\.py\) has"):
        statements.statement_class("fnd")


def test_a_file_without_its_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from irgraph.language.statements import expect

    monkeypatch.delattr(expect, "Expect")
    statements.statement_class.cache_clear()
    with pytest.raises(StatementError, match=r"'expect' \(.*\) has no class Expect\(Statement\)"):
        statements.statement_class("expect")
