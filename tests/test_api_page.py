"""The page about the library is made from its docstrings, and what it promises holds."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import resources
from pathlib import Path

import pytest

import irgraph

ROOT = Path(__file__).parents[1]
DLRM = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"


def test_the_page_is_what_the_docstrings_give() -> None:
    build = runpy.run_path(str(ROOT / "docs" / "build_api.py"))
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert text == build["page"](), "python docs/build_api.py writes it"


def test_every_name_is_on_the_page_once() -> None:
    build = runpy.run_path(str(ROOT / "docs" / "build_api.py"))
    named = [name for names in build["SECTIONS"].values() for name in names]
    assert sorted(named) == sorted(set(irgraph.__all__) - {"__version__"})


def classes() -> list[type]:
    return [found for name in irgraph.__all__ if inspect.isclass(found := getattr(irgraph, name))]


@pytest.mark.parametrize("found", classes(), ids=lambda found: found.__name__)
def test_every_field_is_on_the_page(found: type) -> None:
    """Only what is listed is promised, so nothing public may be left out."""
    build = runpy.run_path(str(ROOT / "docs" / "build_api.py"))
    text = build["_class"](found)
    listed = {word for row in re.findall(r"^- `(.*?)`:", text, re.M) for word in row.split(", ")}
    dataclass = [f.name for f in dataclasses.fields(found)] if is_dataclass(found) else []
    others = [*getattr(found, "__struct_fields__", ()), *getattr(found, "_fields", ())]
    public = {name for name in [*dataclass, *others] if name[0] != "_"}
    assert public - listed <= {"place"}, "its docstring needs Attributes"  # place: of every node


PROGRAMS = ("passes", "schedule")
"""Pages whose programs are run, beside one that takes long."""

UNNAMED = {
    "Any", "Callable", "Exception", "ForwardRef", "Iterable", "Iterator", "Mapping", "None",
    "Path", "Sequence", "Unpack",
    "Choice", "Floats", "Ints", "Intervals", "Note", "Point", "Result", "Torch", "Value",  # plain
    "Expression", "Node", "Statement",  # parts of scripts, which are read from text
    "Host", "HostFile", "Overheads", "Stat",  # parts of host tables, which are read from files
    "PredictFields",  # the fields of PredictOptions
    "Backlog",  # device work that one replayed step leaves to the next
}  # fmt: skip
"""What signatures and fields name that is not on the page."""


def annotations(name: str) -> Iterator[object]:
    """Yield the types that a name of the face takes, holds and returns."""
    found = getattr(irgraph, name)
    if not inspect.isclass(found):
        yield from inspect.get_annotations(getattr(found, "function", lambda: found)()).values()
        return
    held = inspect.get_annotations(found)
    yield from (held[field] for field in held if field[0] != "_")
    for member, value in vars(found).items():
        function = getattr(value, "fget", None) or getattr(value, "func", None) or value
        if member[0] != "_" and inspect.isfunction(function):
            yield from inspect.get_annotations(function).values()


@pytest.mark.parametrize("name", sorted(set(irgraph.__all__) - {"__version__"}))
def test_every_type_that_a_program_meets_has_a_name(name: str) -> None:
    named = {word for one in annotations(name) for word in re.findall(r"\b[A-Z]\w+", str(one))}
    assert named - UNNAMED <= set(irgraph.__all__)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/{n}.md" for n in PROGRAMS),
        pytest.param("docs/tune.md", marks=pytest.mark.slow),
    ],
)
def test_programs_on_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert programs
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    for name in ("model.ir", "rank.ir"):
        Path(name).write_text(DLRM.read_text(encoding="utf-8"), encoding="utf-8")
    names = {"graph": irgraph.load("model.ir")}
    for program in programs:
        exec(program, names)
