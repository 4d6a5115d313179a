"""Every message in full, beside what leads to it; and none that no test has seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.language.suggestions import SLIPS
from tests.messages.book import Reader
from tests.messages.templates import ROOT, templates

BOOKS = ROOT / "tests" / "golden" / "messages"


LONGEST = "changes"
"""The book whose messages need rewrites of captured steps."""

NAMES = sorted(path.stem for path in BOOKS.glob("*.md"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name == LONGEST else ()) for name in NAMES],
)
def test_messages_are_those_of_the_book(
    name: str, page: Callable[[Path, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = BOOKS / f"{name}.md"
    text = book.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page(book, Reader().page(text))


def test_every_slip_of_a_newcomer_is_in_the_book() -> None:
    book = (BOOKS / "mistakes.md").read_text(encoding="utf-8")
    assert [hint for hint in SLIPS.values() if f"hint: {hint}" not in book] == []


UNSEEN = (
    "an earlier fusion changed it",
    "aten.view splits or merges axes, and no whole size fits",
    "my.part returns a view of an unknown kind",
    "aten.view allows no such size",
    "%x.shape[0] has no finite size",
    "torch finds other sizes for aten.view",
    "my.half: 1/2 of %x.shape[0] = 7 is not a whole number",
    "this version of torch runs aten.relu for the new ops",
    "%x would get a gradient that it did not have",
    "torch's compiler fails at the run of ops that it is in: it has no such loop",
    "expected a text, not 3",
)
"""Guards: fusions of one statement never share an op, no version of torch is known that records
other calls than those made, templates take no tensor that no matched op takes, no op is known that
torch's compiler fails at, the check of a script finds numbers where texts belong, and no model is
known that leads to the others, which stop a resize whose sizes do not agree in the end."""


def test_every_message_is_in_a_book() -> None:
    pages = [path.read_text(encoding="utf-8") for path in sorted(BOOKS.iterdir())]
    known = "\n".join([*pages, *UNSEEN])
    missing = [place for place, pattern in templates().items() if not re.search(pattern, known)]
    how = (
        "add what leads to it to a book of tests/golden/messages, run with --update-golden, read it"
    )
    assert not missing, f"{how}:\n" + "\n".join(missing)
