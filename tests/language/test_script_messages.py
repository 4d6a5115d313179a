"""What is wrong with a script is said before anything runs; ``tests/messages`` has the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.language import load_script, run
from irgraph.language.parse import parse_script
from irgraph.language.suggestions import SYNONYMS
from irgraph.text import IrgraphError
from tests.language.models import mlp, model


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("let a = b\nremove aten.rellu(%x)\ntarget 3\nlet a = 4"), mlp())
    assert [d.place.line for d in caught.value.diagnostics if d.place] == [1, 2, 3, 4]


def test_nothing_runs_where_a_later_line_is_wrong() -> None:
    with pytest.raises(IrgraphError, match=r"3:8: error"):
        run(load_script("remove aten.relu_(%h!)\n\ntarget 3"), mlp())


def test_what_is_wrong_in_a_pass_that_is_not_applied_is_said_too() -> None:
    with pytest.raises(IrgraphError, match=r"no property \.shpae"):
        run(load_script('pass a "" { find r = aten.t(%x) where %x.shpae == 1 }\nlet b = 1'), mlp())


def test_names_given_twice_show_both_places() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("find r = aten.t\nfind r = aten.mm"), mlp())
    (note,) = caught.value.diagnostics[0].notes
    assert str(note.place) == "script:1:1"


def test_schemas_that_the_model_declares_are_known() -> None:
    graph = model(
        "input %x : f32[B] in $x\n%y = my.twice(%x) : f32[B] in $y\n",
        ["my::twice(Tensor x) -> Tensor"],
    )
    outcome = run(load_script("fuse %y = my.twice(%x) into %y = my.twice(%x)"), graph)
    assert outcome.report.made == 1


def test_only_a_pass_takes_parameters() -> None:
    with pytest.raises(IrgraphError, match="only a pass takes parameters") as caught:
        run(load_script("let a = 1"), mlp(), {"n": 3})
    assert caught.value.exit_code == 2


def test_a_library_file_holds_one_pass_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_text('pass other "Another." {\n}\n')
    with pytest.raises(IrgraphError, match="expected 'mine'"):
        run(load_script("apply mine"), mlp(), paths=[tmp_path])


def test_a_pass_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(IrgraphError, match="the pass 'mine' cannot be read"):
        run(load_script("apply mine"), mlp(), paths=[tmp_path])


def test_an_error_in_a_library_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_text('pass mine "Mine." { remov aten.t }')
    with pytest.raises(IrgraphError, match=r"mine\.irg:1:21: error: unexpected 'remov'"):
        run(load_script("apply mine"), mlp(), paths=[tmp_path])


@pytest.mark.parametrize("verb", sorted(SYNONYMS))
def test_other_verbs_lead_to_the_statement(verb: str) -> None:
    for word in SYNONYMS[verb].split("|"):
        for spelled in (word, word.upper()):
            with pytest.raises(
                IrgraphError, match=f"unexpected '{spelled}'\n(.*\n)*hint.*'{verb}'"
            ):
                parse_script(f"{spelled} many aten.t")


def test_a_mistake_elsewhere_still_says_what_may_stand_there() -> None:
    with pytest.raises(IrgraphError, match=r"unexpected 'to'; expected .*'[)]'"):
        parse_script("cast many aten.mm(%x, %w to bf16")
    with pytest.raises(IrgraphError, match="unexpected '}'; expected"):
        parse_script("repeat at most 2 { resize B = }")
