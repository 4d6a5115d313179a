"""``python -m tests.cli.fuzz.guided KIND RUNS``: fuzzing of one reader, guided by coverage.

Needs Atheris (``pip install atheris``), which no other test does. A reader fails where it raises
what is no ``IrgraphError``; libFuzzer then leaves the input beside the corpus and says where.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from irgraph.diagnostics import IrgraphError

SECONDS, MEBIBYTES, LONGEST = 20, 2048, 1 << 16


def _kineto(data: bytes) -> object:
    from irgraph.capture.kineto.reading.events import EventReader
    from irgraph.capture.kineto.reading.health import Health

    return list(EventReader(Health("trace")).read(iter([data or b" "])))


def _execution_trace(data: bytes) -> object:
    from irgraph.capture.execution_trace.reader import decode_execution_trace

    return decode_execution_trace(data, "trace")


def _model(data: bytes) -> object:
    from irgraph.text import parse

    return parse(data.decode("utf-8", "replace"))


def _script(data: bytes) -> object:
    from irgraph.language.parse import parse_script

    return parse_script(data.decode("utf-8", "replace"))


READERS: dict[str, Callable[[bytes], object]] = {
    "kineto": _kineto,
    "execution trace": _execution_trace,
    "model": _model,
    "script": _script,
}


def main(kind: str, runs: str) -> None:
    """Fuzz one reader that many times, from its sound file on."""
    import atheris

    read = READERS[kind]
    with atheris.instrument_imports(include=["irgraph"]):  # what these import, too
        from tests.cli.fuzz.seeds import FORMATS

        with contextlib.suppress(IrgraphError):
            read(b"{}")

    def once(data: bytes) -> None:
        with contextlib.suppress(IrgraphError):
            read(data)

    with tempfile.TemporaryDirectory() as corpus:
        FORMATS[kind].write(Path(corpus) / "sound")
        limits = (f"-timeout={SECONDS}", f"-rss_limit_mb={MEBIBYTES}", f"-max_len={LONGEST}")
        atheris.Setup([sys.argv[0], f"-runs={runs}", *limits, corpus], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
