"""On-disk cache of captures, keyed by a hash of the program, its options and its libraries."""

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
"""Hexadecimal digits of the hash in a cache file's name."""


class CacheEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of one cache file.

    Attributes:
        sources: SHA-256 of every Python file loaded with the program, by path, except for the
            standard library and installed packages: their versions are part of the file's name.
        model: text of the captured graph.
        notes, differing, links, health: fields of ``Capture``.
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
    """Return the cached capture of a program, or capture it with ``capture`` and cache it.

    A cached capture is valid if every Python file that the program loaded is unchanged, and Python
    and all installed packages have the same versions. Other inputs, such as data files and
    environment variables, are not checked.

    Args:
        folder: cache folder, created if missing.
        program: path of the program.
        call: function of the program to call, with its options.
        inputs: other inputs of the capture, as plain values.
        capture: captures the program.

    Raises:
        IrgraphError: the folder cannot be created or written; errors of ``capture`` propagate.
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
    """Read a cache file; return ``None`` if it is missing, stale or damaged."""
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
    """Return the versions of Python and of all installed packages."""
    versions = {f"{distribution.name} {distribution.version}" for distribution in distributions()}
    return (f"python {sys.version}", *sorted(versions))


def loaded_files() -> dict[str, str]:
    """Return the hashes of all loaded Python files outside the library's and package folders."""
    paths = sysconfig.get_paths()
    library_roots = tuple(
        f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    loaded = {Path(name).resolve() for name in files if name and name.endswith(".py")}
    names = sorted(str(path) for path in loaded)
    return {name: file_digest(name) for name in names if not name.startswith(library_roots)}


def file_digest(name: str) -> str:
    """Return the SHA-256 of a file, ``""`` if it cannot be read."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""
