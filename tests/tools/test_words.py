"""The lint of names and phrases finds each kind, and the tree does not get worse."""

from __future__ import annotations

import pytest

from tests.tools import words

SOURCE = '''
"""What a module holds."""

LEAST_ROWS = 3


class Rows:
    """Keep rows."""

    kept: int
    """How many there are."""

    @property
    def empty(self) -> bool:
        """Whether nothing is in it."""


def count(what):
    """Tell which rows stand in a table."""
    # a comment that says `what` in code, and mends nothing
    return [one for one in what]
'''


def test_each_kind_is_reported_at_its_line() -> None:
    found = {(f.line, f.rule) for f in words.source_findings("rows/found.py", SOURCE)}
    assert found == {
        (1, "file-name"), (2, "doc-clause"), (2, "what-clause"), (4, "most-constant"),
        (8, "doc-verb"), (8, "keep"), (10, "participle"), (11, "doc-clause"), (18, "pronoun"),
        (19, "doc-verb"), (19, "stand"), (19, "tell"), (20, "mend"), (20, "say"), (21, "pronoun"),
    }  # fmt: skip


def test_a_page_counts_outside_code() -> None:
    page = "It says `what`.\n\n```text\nwhat it says\n```\n\n    what\n"
    assert [f.rule for f in words.page_findings("a.md", page)] == ["say"]


def test_three_classes_of_one_name_are_reported() -> None:
    source = "class Step: ..."
    assert not list(words.class_findings({"a.py": source, "b.py": source}))
    found = words.class_findings({"a.py": source, "b.py": source, "c.py": source})
    assert [f.file for f in found] == ["a.py", "b.py", "c.py"]


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("Cache launches per op", None),
        (f"Add {'x' * 56}", None),
        ("x", "a single word: name the change and its object"),
        ("x" * 61, "61 characters, more than 60"),
        ("Keep with ops what they launch", "begins with 'Keep': use a verb of the trade"),
    ],
)
def test_subjects(subject: str, fault: str | None) -> None:
    assert words.subject_fault(subject) == fault


def test_no_count_exceeds_the_ratchet() -> None:
    assert words.exceeded_counts() == []


def test_commits_since_the_last_tag_have_short_subjects() -> None:
    assert words.subject_faults(words.recent_subjects()) == []
