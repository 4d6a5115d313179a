"""Edits are tried, applied, undone; figures are those of the public functions."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.studio import page_data
from irgraph.studio.session import Session
from tests.studio.conftest import SMALL

SILU = "replace %y = aten.relu(%x) with %y = aten.silu(%x)"


def test_trying_changes_nothing(session: Session) -> None:
    found = session.attempt(SILU)
    assert found.step is not None
    assert "aten.silu" in irgraph.print_graph(found.step.graph)
    assert session.step is session.first
    assert session.script() == ""


def test_figures_are_those_of_the_library(dlrm: irgraph.Graph) -> None:
    session = Session(dlrm)
    session.apply("apply fuse-epilogue")
    found = session.attempt("apply fuse-embedding").step
    assert found is not None
    once = irgraph.rewrite(dlrm, "fuse-epilogue").graph
    twice = irgraph.rewrite(once, "fuse-embedding").graph
    assert found.graph == twice
    record = page_data.attempt(session, session.attempt("apply fuse-embedding"))["figures"]
    change, total = irgraph.diff(once, twice), irgraph.diff(dlrm, twice)
    for key, difference in (("change", change), ("total", total)):
        low, high = difference.interval
        value = difference.step_time_change
        assert record[key] == {"value": value, "low": low, "high": high}
    assert record["step"]["value"] == irgraph.predict(twice).step_time


def test_undo_and_redo(session: Session) -> None:
    session.apply(SILU)
    session.apply("resize B = 128")
    after = session.step
    session.move(-1)
    assert session.step.graph.dims["B"] == 64
    assert [step.text for step in session.undone_edits] == ["resize B = 128"]
    session.move(1)
    assert session.step is after
    session.move(-9)
    assert session.step is session.first
    session.move(9)
    assert session.step is after
    session.move(-2)
    session.apply("resize B = 32")
    assert session.undone_edits == []
    assert session.script() == "resize B = 32\n"


def test_a_refusal_has_its_reasons(session: Session) -> None:
    found = session.apply("remove aten.relu")
    assert found.step is None and not found.is_invalid
    assert session.step is session.first
    (problem,) = page_data.attempt(session, found)["problems"]
    assert problem["message"] == "a result that this removes is still in use"
    assert [note["message"] for note in problem["notes"]] == ["aten.neg (%z) uses %y"]
    assert problem["hint"].startswith("give its users another tensor")
    assert problem["mark"] == [1, 1, 16]


@pytest.mark.parametrize("text", ["remoove", "remove", 'pass "', "remove aten.nope", "\0"])
def test_what_cannot_be_read_is_told_apart(session: Session, text: str) -> None:
    found = session.attempt(text)
    assert found.is_invalid and found.problems


def test_names_carry_over(session: Session) -> None:
    session.apply(SILU)
    session.apply("find chosen = aten.silu\nlet size = 32")
    found = session.apply("expect 1 chosen\nresize B = size")
    assert found.step is not None
    assert [str(entry.statement) for entry in found.step.entries] == [
        "expect 1 chosen",
        "resize B = size",
    ]
    assert irgraph.run_script(irgraph.parse(SMALL), session.script()).graph == session.step.graph


def test_lines_count_from_the_edit_on(session: Session) -> None:
    session.apply(f"# first\n{SILU}\nfind chosen = aten.silu")
    (found,) = session.attempt("\nexpect 2 chosen").problems
    assert found.place is not None
    assert (found.place.line, found.place.column) == (2, 1)
    assert "   2 | expect 2 chosen" in str(found)
    (twice,) = session.attempt("find chosen = aten.neg").problems
    assert "named twice" in twice.message


def test_a_statement_that_changes_nothing_is_no_error(session: Session) -> None:
    record = page_data.attempt(session, session.attempt("cast many aten.mul to bf16"))
    assert record["legal"] and not record["changed"]
    assert "nothing matches" in record["problems"][0]["message"]


MEASURED = SMALL.replace("format = 2", 'format = 2  measured_on = "Tesla V100-SXM2-16GB"')


def test_only_the_last_is_kept_of_what_was_tried(session: Session) -> None:
    for size in range(1, 30):
        session.attempt(f"resize B = {size}")
    assert session.attempt("resize B = 29") is session.attempt("resize B = 29")
    assert len(session._attempts) < 10
