"""Captures kept in a folder, by the hash of what they depend on: the program and its libraries."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import msgspec
from msgspec import Struct

from irgraph.capture.common.result import Capture
from irgraph.diagnostics import IrgraphError, SourceSpan, fail
from irgraph.files import write_atomic
from irgraph.text import parse, print_graph

DIGEST_DIGITS = 24
"""Hexadecimal digits of a hash in a file's name."""


class CacheEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of the folder holds.

    Attributes:
        sources: the hash of every file of Python that was loaded with the program, by its path; not
            those of Python itself and of installed packages, whose versions the file's name knows.
        model: the text of the captured step.
        notes, differing, links, health: as ``Capture`` has them.
    """

    sources: dict[str, str]
    model: str
    notes: tuple[str, ...]
    differing: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    health: tuple[str, ...]


def cached_capture(
    folder: str | Path, program: str, call: str, inputs: object, capture: Callable[[], Capture]
) -> Capture:
    """Return the capture that a folder holds of what is asked, or make it and keep it there.

    One that was made before counts if every file of Python that its program had loaded is as it
    was, and Python and all installed packages are of the same versions. What else a program
    reads, data files and the environment, is not looked at.

    Args:
        folder: of captures; made where there is none.
        program: the program's file.
        call: the function of it, with its options.
        asked: what else decides what is captured, plain values.
        make: captures it.

    Raises:
        IrgraphError: the folder cannot be made or written, or what ``capture`` raises.
    """
    cache_folder = Path(folder)
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(error.strerror or str(error), SourceSpan(str(folder)), exit_code=2) from None
    resolved = str(Path(program).resolve())
    key = msgspec.json.encode([program, resolved, call, inputs, installed_versions()])
    path = cache_folder / f"{hashlib.sha256(key).hexdigest()[:DIGEST_DIGITS]}.json"
    cached = _read(path)
    if cached is not None:
        return cached
    program_digest = file_digest(resolved)
    captured = capture()
    parts = {name: getattr(captured, name) for name in ("notes", "differing", "links", "health")}
    sources = {**loaded_files(), resolved: program_digest}
    entry = CacheEntry(sources=sources, model=print_graph(captured.graph), **parts)
    write_atomic(path, msgspec.json.encode(entry))
    return captured


def _read(path: Path) -> Capture | None:
    """Return what a file holds; nothing where there is none, or it is out of date or damaged."""
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=CacheEntry)
        if any(file_digest(name) != digest for name, digest in entry.sources.items()):
            return None
        graph = parse(entry.model)
    except (OSError, msgspec.MsgspecError, IrgraphError):
        return None
    return Capture(graph, entry.notes, entry.differing, entry.links, entry.health)


@cache
def installed_versions() -> tuple[str, ...]:
    """Return Python and all installed packages with their versions."""
    versions = {f"{distribution.name} {distribution.version}" for distribution in distributions()}
    return (f"python {sys.version}", *sorted(versions))


def loaded_files() -> dict[str, str]:
    """Return the hashes of the loaded files of Python that no installed package brought."""
    paths = sysconfig.get_paths()
    library_roots = tuple(
        f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    loaded = {Path(name).resolve() for name in files if name and name.endswith(".py")}
    names = sorted(str(path) for path in loaded)
    return {name: file_digest(name) for name in names if not name.startswith(library_roots)}


def file_digest(name: str) -> str:
    """Return the SHA-256 of a file's content, ``""`` where it cannot be read."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""
