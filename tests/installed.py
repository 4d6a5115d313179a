"""A package as pip installs it, for tests of what packages add through entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from costmodels import families
from costmodels.devices import library
from costmodels.hosts import library as host_library
from costmodels.learned import weights
from irgraph import plugins
from irgraph.capture import lower

CACHES: tuple[Callable[[], None], ...] = tuple(
    function.cache_clear
    for function in (
        plugins.plugins,
        plugins._declarations,
        families._modules,
        families.rules,
        families.sweeps,
        families.learned_families,
        weights.load_shipped,
        library._sheets,
        library._names_by_alias,
        host_library.host_files,
        lower.front_ends,
    )
)
"""What forgets the packages that were installed when they were first looked for."""


def install(
    site: Path, package: str, points: Mapping[str, Mapping[str, str]], files: Mapping[str, str]
) -> None:
    """Write a distribution into a folder of packages.

    ``points`` are its entry points by group and name, ``files`` texts by path.
    """
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, named in points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of packages that is on the path of this test alone."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    _forget()
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    _forget()


def _forget() -> None:
    for clear in CACHES:
        clear()
