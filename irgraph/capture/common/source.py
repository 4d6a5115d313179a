"""A file to be lowered: opened once, recognised by its first bytes, read by one front end."""

from __future__ import annotations

import io
import re
import sys
import zlib
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import IO, Self

from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import open_input, read_bounded, unpack

GZIP, ZIP, BOM = b"\x1f\x8b", b"PK\x03\x04", b"\xef\xbb\xbf"

HEAD_BYTES = 1 << 16
"""Bytes from the start of a file by which its kind is recognised."""


class Source:
    """A file, standard input (``-``) or a folder; usable as a path.

    It is opened once, at its first use, so that a pipe can be recognised and then read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def open_once(cls, path: str | Path | Source) -> AbstractContextManager[Source]:
        """Return a context manager of a source for a path; a given source stays open after it."""
        return nullcontext(path) if isinstance(path, Source) else cls(path)

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __enter__(self) -> Self:
        """Return the source, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file if it was opened here."""
        if "_file" in self.__dict__ and str(self) != "-":
            self._file.close()

    @property
    def name(self) -> str:
        """Name in messages."""
        return "stdin" if str(self) == "-" else str(self)

    @cached_property
    def _file(self) -> IO[bytes]:
        try:
            file = sys.stdin.buffer if str(self) == "-" else open_input(self.path)
            return file if file.seekable() else io.BytesIO(read_bounded(file))
        except OSError as error:
            raise fail(error.strerror or str(error), SourceSpan(str(self))) from None

    def open(self) -> IO[bytes]:
        """Return the file at its beginning; every call returns the same file.

        Raises ``IrgraphError`` if it cannot be read.
        """
        self._file.seek(0)
        return self._file

    def read(self) -> bytes:
        """Return the whole content, unpacked if it is gzipped.

        Raises ``IrgraphError`` if it cannot be read or unpacked.
        """
        return unpack(self.open().read(), self.name)

    @cached_property
    def start(self) -> bytes:
        """The first bytes of the content, unpacked if it is gzipped; empty for a folder."""
        if self.path.is_dir():
            return b""
        data = self.open().read(HEAD_BYTES)
        if data.startswith(GZIP):
            try:
                data = zlib.decompressobj(31).decompress(data, HEAD_BYTES)
            except zlib.error:
                return data
        return data.removeprefix(BOM)

    @property
    def text(self) -> bytes:
        """The first bytes of a text, without leading white space."""
        return self.start.lstrip()


def is_chakra_json(start: bytes) -> bool:
    """Return whether a file begins as a Chakra trace printed as JSON: metadata, then a node.

    Chakra's feeder has another form, one object with the key ``workload_graph``.
    """
    keys = re.match(rb'\{\s*(?:"(version|attr|workload_graph)"\s*:|\}\s*\{)', start)
    return keys is not None and b'"traceEvents"' not in start


def is_execution_trace(start: bytes) -> bool:
    """Return whether a file begins as an execution trace, by its first keys."""
    if is_chakra_json(start):
        return False
    first = re.search(rb'"(nodes|traceEvents|op_schema|schemaVersion)"', start)
    key = first[1] if first else b""
    version = re.search(rb'"schema"\s*:\s*"\d', start)
    if start[:1] != b"{" or key == b"traceEvents":
        return False
    return version is not None or key in (b"nodes", b"op_schema")


def is_kineto_trace(start: bytes) -> bool:
    """Return whether a file begins as a Kineto trace, or as a bare list of events."""
    if start[:1] == b"[":
        return b'"ph"' in start
    keys = b'"traceEvents"' in start or b'"schemaVersion"' in start
    return start[:1] == b"{" and keys and not is_execution_trace(start)


def refuse_other_formats(start: bytes, expected: str, source: str) -> None:
    """Raise an error that names the kind of a file if it cannot be a trace.

    ``start`` has its first bytes, ``expected`` is the expected kind, such as ``a Kineto trace``.
    """
    start = start.lstrip()
    if not start:
        hint = "was the profiler stopped properly?"
        raise fail("the file is empty", SourceSpan(source), hint=hint)
    if start[:1] in b"{[":
        return
    hint = ""
    if start[:1] == b"<":
        kind = "HTML or XML"
        hint = "a download may have saved an error page instead of the file"
    else:
        kind = "binary data" if b"\x00" in start[:512] else "not JSON"
    raise fail(f"this is {kind}, not {expected}", SourceSpan(source), hint=hint)
